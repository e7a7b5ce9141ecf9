"""What the commands that train on preference pairs share: their options, their model, their pairs, what they print."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from transformers import PreTrainedModel

from streamrl.config.estimates.model_presets import PRESETS
from streamrl.config.schema.run import ModelConfig
from streamrl.errors import ConfigError, NonFiniteError
from streamrl.learner.supervised.pair_training import PairProgress, PairTraining
from streamrl.learner.supervised.preference_pairs import EncodedPair, encode_pairs, read_pairs, refuse, split_pairs
from streamrl.models.load import prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer

Settings = TypeVar("Settings", bound=PairTraining)


class Sides:
    """The pairs of a file: trained on, held out, and how many were left out."""

    def __init__(self, preferences: Path, source: Path, model: PreTrainedModel, held_out: float, skip_long: bool):
        """Raises ConfigError for pairs that are wrong, or longer than the model's context."""
        pairs = read_pairs(preferences)
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        kept = _kept(encode_pairs(pairs, load_tokenizer(source), preferences), context, preferences, skip_long)
        self.trained, self.held_out = split_pairs(kept, held_out)
        self._left_out = len(pairs) - len(kept)

    def counts(self) -> dict[str, int]:
        """As they are told."""
        sides = {"pairs_trained": len(self.trained), "pairs_held_out": len(self.held_out)}
        return {**sides, "pairs_left_out": self._left_out}


def settings_of(options: Mapping[str, object], kind: type[Settings]) -> Settings:
    """Raises ConfigError naming the option that is wrong."""
    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"--{where.rstrip('`').replace('_', '-')}: {what[0].lower()}{what[1:]}") from error


def source_of(model: str, seed: int, scratch: Path) -> Path:
    """The folder of the model that a training begins with; a preset's is made at `scratch`. Raises ConfigError."""
    if model in PRESETS and not Path(model).exists():
        return prepare_model_folder(ModelConfig(preset=model), seed, scratch)
    if not Path(model).is_dir():
        raise ConfigError(f"--model: {model} is no folder and no preset; there is {', '.join(PRESETS)}")
    return prepare_model_folder(ModelConfig(path=model), seed, scratch)


def run_and_print(
    run: Callable[[Callable[[PairProgress], None]], PairProgress], settings: PairTraining, what: str, as_json: bool
) -> PairProgress:
    """Run a training, and print every look. what: the training in words. Raises NonFiniteError, with the way out."""
    try:
        return run(lambda progress: _print_progress(progress, settings.steps, as_json))
    except NonFiniteError as error:
        way_out = f"nothing was written; take a lower --lr than {settings.lr:g}"
        raise NonFiniteError(f"{what} diverged, and {way_out} ({error})") from error


def _print_progress(progress: PairProgress, steps: int, as_json: bool) -> None:
    """A look at the held-out pairs."""
    if as_json:
        facts = {**progress._asdict(), "loss": None if math.isnan(progress.loss) else progress.loss}
        print(json.dumps(facts), flush=True)
        return
    loss = "" if math.isnan(progress.loss) else f"loss {progress.loss:.4f}  "
    told = f"held-out accuracy {progress.accuracy:.3f}, chosen above rejected by {progress.distance:.3f}"
    print(f"step {progress.step}/{steps}  {loss}{told}", flush=True)


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
