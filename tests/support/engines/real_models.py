"""Small models for real servers, and the log-probs that transformers gives for what the servers sampled."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, PreTrainedModel

from streamrl.config.schema.run import ModelConfig
from streamrl.models.dtypes import DTYPES
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.types import FloatArray

CONTEXT = 512


def write_model(folder: Path, seed: int, *, context: int = CONTEXT, tied: bool = True, dtype: str = "float32") -> Path:
    """A model folder of 0.4 million parameters whose distributions differ well between seeds."""
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), seed, folder)
    config = json.loads((folder / "config.json").read_text())
    changed = {"max_position_embeddings": context, "tie_word_embeddings": tied, "dtype": dtype}
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    if not tied:
        head = torch.empty_like(tensors["model.embed_tokens.weight"])
        tensors["lm_head.weight"] = head.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed))
    # As they are drawn, weights give nearly equal odds to all tokens, whatever the prompt.
    sharper = {name: (tensor * (3 if tensor.ndim == 2 else 1)).to(DTYPES[dtype]) for name, tensor in tensors.items()}
    save_file(sharper, path, metadata={"format": "pt"})
    return folder


def reference(folder: Path) -> PreTrainedModel:
    """The model in float32, whatever its weights are kept in."""
    return load_model(folder, "float32")


@torch.inference_mode()
def logprobs_of(
    model: PreTrainedModel, prompt: Sequence[int], sampled: Sequence[int], temperature: float
) -> FloatArray:
    """float32 [n]: of each of n sampled tokens, given the prompt and those before it."""
    ids = torch.tensor([[*prompt, *sampled]])
    logits = model(ids).logits[0, len(prompt) - 1 : -1]
    return _chosen(logits, sampled, temperature)


@torch.inference_mode()
def logprobs_with_old_cache(
    old: PreTrainedModel,
    new: PreTrainedModel,
    prompt: Sequence[int],
    sampled: Sequence[int],
    first: int,
    temperature: float,
) -> FloatArray:
    """float32 [n - first]: of the tokens from `first` on, by `new`, over keys and values that `old` computed for all
    that it had been fed: everything before token `first` but the last, which nobody had been fed yet."""
    cache = DynamicCache()
    # By place: transformers renamed this argument in 5.24.
    old(torch.tensor([[*prompt, *sampled[: first - 1]]]), None, None, cache, use_cache=True)
    logits = new(torch.tensor([list(sampled[first - 1 : -1])]), None, None, cache, use_cache=True).logits[0]
    return _chosen(logits, sampled[first:], temperature)


def furthest(ours: FloatArray, theirs: FloatArray) -> float:
    """The largest distance between the two."""
    assert len(ours) == len(theirs)
    return float(np.abs(ours - theirs).max(initial=0.0))


def _chosen(logits: torch.Tensor, sampled: Sequence[int], temperature: float) -> FloatArray:
    chosen = torch.tensor(sampled)[:, None]
    return torch.log_softmax(logits.float() / temperature, dim=-1).gather(1, chosen)[:, 0].numpy()
