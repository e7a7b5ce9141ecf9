"""`streamrl reward-model`: from a file of preference pairs to a folder with a reward model. Imports torch."""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from services.printed import print_facts
from streamrl.config.schema import ModelConfig
from streamrl.errors import ConfigError, NonFiniteError
from streamrl.learner.preference_pairs import EncodedPair, encode_pairs, read_pairs, refuse, split_pairs
from streamrl.learner.reward_training import RewardProgress, RewardTrainer, RewardTraining, trainer
from streamrl.models.classifier import write_classifier
from streamrl.models.folders import require_ours
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.presets import PRESETS
from streamrl.models.tokenizer import load_tokenizer


def train(
    preferences: Path, model: str, out: Path, options: Mapping[str, object], *, skip_long: bool, as_json: bool
) -> None:
    """options: of `RewardTraining`. Prints every look at the held-out pairs, and what was written. Raises ConfigError
    for what the user got wrong, before anything is computed, and NonFiniteError for a training that diverges."""
    settings = _settings(options)
    require_ours(out)
    pairs = read_pairs(preferences)
    with tempfile.TemporaryDirectory(prefix="srl-reward-model-") as scratch:
        source = _source(model, settings.seed, Path(scratch) / "model")
        begin = load_model(source, "float32")
        context = getattr(begin.config.get_text_config(), "max_position_embeddings", None)
        encoded = encode_pairs(pairs, load_tokenizer(source), preferences)
        kept = _kept(encoded, context, preferences, skip_long)
        sides = split_pairs(kept, settings.held_out)
        with trainer(begin, settings, *sides) as training:
            last = _run(training, settings, as_json)
            write_classifier(dict(training.weights()), source, out)
    counts = {"pairs_trained": len(sides[0]), "pairs_held_out": len(sides[1]), "pairs_left_out": len(pairs) - len(kept)}
    print_facts({"folder": str(out), **counts, "held_out_accuracy": last.accuracy}, as_json)


def _run(training: RewardTrainer, settings: RewardTraining, as_json: bool) -> RewardProgress:
    try:
        return training.run(lambda progress: _print(progress, settings.steps, as_json))
    except NonFiniteError as error:
        way_out = f"nothing was written; take a lower --lr than {settings.lr:g}"
        raise NonFiniteError(f"the training of the reward model diverged, and {way_out} ({error})") from error


def _settings(options: Mapping[str, object]) -> RewardTraining:
    try:
        return msgspec.convert(options, RewardTraining)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"--{where.rstrip('`').replace('_', '-')}: {what[0].lower()}{what[1:]}") from error


def _source(model: str, seed: int, scratch: Path) -> Path:
    """The folder of the model that the decoder begins with; a preset's is made at `scratch`."""
    if model in PRESETS and not Path(model).exists():
        return prepare_model_folder(ModelConfig(preset=model), seed, scratch)
    if not Path(model).is_dir():
        raise ConfigError(f"--model: {model} is no folder and no preset; there is {', '.join(PRESETS)}")
    return prepare_model_folder(ModelConfig(path=model), seed, scratch)


def _kept(
    pairs: Sequence[EncodedPair], context: int | None, preferences: Path, skip_long: bool
) -> Sequence[EncodedPair]:
    """The pairs that the model has room for."""
    if context is None:
        return pairs
    longer = [pair for pair in pairs if pair.num_tokens > context]
    if not skip_long:
        wrong = [f"line {pair.line}: {pair.num_tokens} tokens, and the model takes {context}" for pair in longer]
        refuse(preferences, wrong, "shorten these, or leave them out with --skip-long")
    return [pair for pair in pairs if pair.num_tokens <= context]


def _print(progress: RewardProgress, steps: int, as_json: bool) -> None:
    if as_json:
        facts = {**progress._asdict(), "loss": None if math.isnan(progress.loss) else progress.loss}
        print(json.dumps(facts), flush=True)
        return
    loss = "" if math.isnan(progress.loss) else f"loss {progress.loss:.4f}  "
    told = f"held-out accuracy {progress.accuracy:.3f}, chosen above rejected by {progress.distance:.3f}"
    print(f"step {progress.step}/{steps}  {loss}{told}", flush=True)
