"""A trained reward model as a Hugging Face folder: a sequence classifier of one label.

Guarantees that what stands at the place asked for is whole, loads with `AutoModelForSequenceClassification` and scores
there, one row at a time, at the row's last token. It does not know how the weights were trained.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from streamrl.errors import NonFiniteError
from streamrl.models.export import copy_small_files
from streamrl.models.folders import write_folder
from streamrl.models.load import no_progress_bars
from streamrl.models.tokenizer import load_tokenizer


def write_classifier(weights: Mapping[str, torch.Tensor], source: str | Path, out: str | Path) -> None:
    """Write `weights` (float32, Hugging Face names, the head as `score.weight`) to the folder `out`, with the tokenizer
    of the causal model in `source`, whose decoder they are of.

    An earlier folder of ours is replaced; any other is refused with ConfigError. Raises NonFiniteError naming a weight.
    """
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            raise NonFiniteError(f"reward model: {name} holds a value that is not finite; nothing was written")
    source = Path(source)
    write_folder(Path(out), {"reward_model": True}, lambda fresh: _fill(fresh, weights, source))


def _fill(fresh: Path, weights: Mapping[str, torch.Tensor], source: Path) -> None:
    config = AutoConfig.from_pretrained(source, num_labels=1, local_files_only=True, trust_remote_code=False)
    # transformers reads the score at the last token that is not the padding token: an end token must be none.
    if config.pad_token_id in load_tokenizer(source).eos_token_ids:
        config.pad_token_id = None
    # Without memory of its own: it takes over the tensors that are given.
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    model.load_state_dict(dict(weights), strict=True, assign=True)
    with no_progress_bars():
        model.save_pretrained(fresh)
    copy_small_files(source, fresh)
    (fresh / "generation_config.json").unlink(missing_ok=True)
