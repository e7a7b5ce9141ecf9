"""What a run with adapters trained, as peft computes it unmerged, against what its replicas logged."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from streamrl.buffers.segments.places import COMPLETIONS_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.learner.checkpoint.checkpoint import verify
from streamrl.services.commands.exchange.hub import export
from streamrl.services.run.folder import RunFolder

# peft 0.21 reads an attribute that transformers 5.23 calls by another name.
IGNORED = "ignore:.*is_gradient_checkpointing.*:FutureWarning"


def base_model(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder / "model")


def adapted_model(folder: Path, scratch: Path, step: int) -> PeftModel:
    """The model of a run with the adapters of a checkpoint beside it."""
    export(RunFolder.open(folder), scratch / "newest", "peft")
    model = PeftModel.from_pretrained(base_model(folder), scratch / "newest")
    trained = verify(folder / "checkpoints" / f"step_{step:06d}")
    with torch.no_grad():
        for name, param in model.named_parameters():
            if ".lora_" in name:
                own = name.removeprefix("base_model.model.").replace(".default.", ".")
                param.copy_(trained.tensor(f"model/{own}"))
    return model


def logprobs(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]


class Apart(NamedTuple):
    """Largest differences between what was logged and what is computed, with adapters and without. rows: compared."""

    rows: int
    adapted: float
    base: float


def most_sampled(folder: Path, least: int) -> int:
    """The step from `least` on, of those that a checkpoint holds, whose version alone sampled the most rows."""
    kept = {int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*")}
    seen = [{span["step"] for span in row["version_spans"]} for row in _completions(folder)]
    alone = Counter(step for steps in seen if len(steps) == 1 for step in steps & kept if step >= least)
    return max(alone, key=lambda step: alone[step])


def apart(folder: Path, scratch: Path, step: int, most: int = 16) -> Apart:
    """Over what the version of one checkpoint sampled of rows that it began: up to the next version."""
    model = adapted_model(folder, scratch, step)
    rows = [row for row in _completions(folder) if row["version_spans"] and row["version_spans"][0]["step"] == step][
        :most
    ]
    with_adapters, without = 0.0, 0.0
    for row in rows:
        end = row["version_spans"][1]["start"] if len(row["version_spans"]) > 1 else len(row["token_ids"])
        ids, sampled = torch.tensor([row["token_ids"][:end]]), torch.tensor(row["token_origin"][1:end]) == 1
        logged = torch.tensor(row["rollout_logprobs"][1:end])[sampled]
        with_adapters = max(with_adapters, _furthest(model, ids, sampled, logged))
        with model.disable_adapter():
            without = max(without, _furthest(model, ids, sampled, logged))
    return Apart(len(rows), with_adapters, without)


def _furthest(model: torch.nn.Module, ids: torch.Tensor, sampled: torch.Tensor, logged: torch.Tensor) -> float:
    return float((logprobs(model, ids)[sampled] - logged).abs().max())


def _completions(folder: Path) -> list[dict[str, Any]]:
    reader = SegmentReader(folder)
    paths = sorted((folder / COMPLETIONS_DIR).glob("*.arrow"))
    frames = [frame for path in paths for frame in reader.scan(str(path.relative_to(folder)))]
    return [row for frame in frames for row in reader.read(frame).to_pylist()]
