"""`streamrl dpo`: from a model and preference pairs to a model that prefers what was chosen. Imports torch."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from streamrl.learner.supervised.dpo_training import DpoTraining, trainer
from streamrl.models.dtypes import DTYPES
from streamrl.models.export import export_hf
from streamrl.models.folders import require_ours
from streamrl.models.load import load_model
from streamrl.services.commands.printed import print_facts
from streamrl.services.commands.training.pair_training import Sides, run_and_print, settings_of, source_of


def train(
    preferences: Path,
    model: str,
    out: Path,
    options: Mapping[str, object],
    *,
    dtype: str,
    skip_long: bool,
    as_json: bool,
) -> None:
    """options: of `DpoTraining`. dtype: of what is written. Prints every look at the held-out pairs, and what was
    written. Raises ConfigError for what the user got wrong, before anything is computed, and NonFiniteError for a
    training that diverges."""
    settings = settings_of(options, DpoTraining)
    require_ours(out)
    with tempfile.TemporaryDirectory(prefix="srl-dpo-") as scratch:
        source = source_of(model, settings.seed, Path(scratch) / "model")
        load = partial(load_model, source, "float32")
        sides = Sides(preferences, source, load(), settings.held_out, skip_long)
        with trainer(load, settings, sides.trained, sides.held_out) as training:
            last = run_and_print(training.run, settings, "the training", as_json)
            export_hf(((name, weight.to(DTYPES[dtype])) for name, weight in training.weights()), source, out)
    print_facts({"folder": str(out), **sides.counts(), "held_out_accuracy": last.accuracy}, as_json)
