"""`streamrl reward-model`: from a file of preference pairs to a folder with a reward model. Imports torch."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from streamrl.learner.supervised.reward_training import RewardTraining, trainer
from streamrl.models.classifier import write_classifier
from streamrl.models.folders import require_ours
from streamrl.models.load import load_model
from streamrl.services.commands.printed import print_facts
from streamrl.services.commands.training.pair_training import Sides, run_and_print, settings_of, source_of


def train(
    preferences: Path, model: str, out: Path, options: Mapping[str, object], *, skip_long: bool, as_json: bool
) -> None:
    """options: of `RewardTraining`. Prints every look at the held-out pairs, and what was written. Raises ConfigError
    for what the user got wrong, before anything is computed, and NonFiniteError for a training that diverges."""
    settings = settings_of(options, RewardTraining)
    require_ours(out)
    with tempfile.TemporaryDirectory(prefix="srl-reward-model-") as scratch:
        source = source_of(model, settings.seed, Path(scratch) / "model")
        begin = load_model(source, "float32")
        sides = Sides(preferences, source, begin, settings.held_out, skip_long)
        with trainer(begin, settings, sides.trained, sides.held_out) as training:
            last = run_and_print(training.run, settings, "the training of the reward model", as_json)
            write_classifier(dict(training.weights()), source, out)
    print_facts({"folder": str(out), **sides.counts(), "held_out_accuracy": last.accuracy}, as_json)
