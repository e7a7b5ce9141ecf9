"""Reward models and preferences for the tests, all seeded: the answer to `37=` is `37`."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from streamrl.config.schema.run import ModelConfig
from streamrl.models.classifier import write_classifier
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.tokenizer import TextTokenizer
from streamrl.rewards.base import RewardItem
from streamrl.types import IntArray

HIDDEN = 128
"""Of the preset."""


def copies(count: int, seed: int) -> list[dict[str, str]]:
    """Pairs of which the chosen answer is the number that was asked for, and the rejected one another number."""
    random = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        right, other = random.integers(0, 100, 2).tolist()
        wrong = other if other != right else (right + 1) % 100
        pairs.append({"prompt": f"{right}=", "chosen": str(right), "rejected": str(wrong)})
    return pairs


def write_pairs(path: Path, pairs: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def policy_folder(folder: Path, seed: int = 0) -> Path:
    """The preset's model and tokenizer."""
    return prepare_model_folder(ModelConfig(preset="tiny-qwen3"), seed, folder / f"policy-{seed}")


def random_reward_model(folder: Path, seed: int = 0, head: float = 1.0) -> Path:
    """A reward model that has learned nothing: scores of about `head` times 10, of which no two are equal."""
    source = policy_folder(folder.parent, seed)
    decoder = load_model(source, "float32").base_model
    weights = {f"model.{name}": param.detach() for name, param in decoder.named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    weights["score.weight"] = head * torch.randn(1, HIDDEN, generator=generator)
    write_classifier(weights, source, folder)
    return folder


def random_rows(seed: int, count: int, *, longest: int = 12, vocab_size: int = 22) -> list[IntArray]:
    """Rows of any tokens, of unequal length; padding and end tokens are anywhere among them, last ones too."""
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest + 1, count)
    return [random.integers(0, vocab_size, length).astype(np.int32) for length in lengths]


def item_of(prompt: str, completion: str, tokenizer: TextTokenizer, **fields: str) -> RewardItem:
    """What the reward stage gets for a completion that ended with an end token."""
    sampled = np.append(tokenizer.encode(completion, add_special_tokens=False), tokenizer.eos_token_ids[0])
    ids = (sampled.astype("<i4").tobytes(), tokenizer.encode(prompt).astype("<i4").tobytes())
    return RewardItem(completion, prompt, token_ids=ids[0], prompt_ids=ids[1], **fields)
