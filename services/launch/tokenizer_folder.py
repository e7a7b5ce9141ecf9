"""Where the tokenizer of a configuration is, before a run has a model folder."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamrl.config.schema.run import ModelConfig


@contextmanager
def tokenizer_folder(model: ModelConfig) -> Iterator[Path]:
    """The model's folder; for a preset, whose folder the learner will make, a temporary one with its tokenizer."""
    if model.preset is None:
        yield Path(model.path or "").expanduser()
        return
    # Here and not above: a command that needs no tokenizer does not import its library.
    from streamrl.config.estimates.model_presets import find_preset
    from streamrl.models.tokenizer import write_preset_tokenizer

    preset = find_preset(model.preset)
    with tempfile.TemporaryDirectory(prefix="srl-check-") as scratch:
        write_preset_tokenizer(preset, Path(scratch))
        yield Path(scratch)
