"""Adapters as a folder in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

Guarantees: whole or not there, as `streamrl.models.export`; `peft.PeftModel.from_pretrained(base, folder)` computes
what the merged weights do, up to the rounding of another order. Needs the extra `lora`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import save_file

from streamrl.errors import NonFiniteError
from streamrl.models.adapters.names import PEFT_PREFIX
from streamrl.models.folders import write_folder

WEIGHTS = "adapter_model.safetensors"


def peft_config(rank: int, alpha: float, targets: Sequence[str], base: str | None = None) -> LoraConfig:
    """What peft calls the same. base: where the model lies that they are for."""
    return LoraConfig(
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        r=rank,
        # An integer where it is one: so it is typed there.
        lora_alpha=int(alpha) if float(alpha).is_integer() else alpha,  # type: ignore[arg-type]
        target_modules=list(targets),
        lora_dropout=0.0,
        bias="none",
    )


def export_peft(tensors: Mapping[str, torch.Tensor], config: LoraConfig, out_folder: Path) -> None:
    """Write adapters by our names to `out_folder`. An earlier export is replaced; any other folder is refused with
    ConfigError. Raises NonFiniteError naming the tensor."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise NonFiniteError(f"export: {name} holds a value that is not finite; nothing was written")
    write_folder(out_folder, {"export": True, "layout": "peft"}, lambda fresh: _fill(fresh, tensors, config))


def _fill(fresh: Path, tensors: Mapping[str, torch.Tensor], config: LoraConfig) -> None:
    config.inference_mode = True
    config.save_pretrained(str(fresh))
    named = {PEFT_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(named, fresh / WEIGHTS, metadata={"format": "pt"})
