"""Which server programs there are: for each, how a configuration starts it, and who speaks to it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamrl.config import Config
from streamrl.config.estimates.model_facts import read_folder
from streamrl.engines.server.contract import ServerContract
from streamrl.engines.server.http import Http
from streamrl.engines.server.process.process import ServerCommand
from streamrl.engines.server.sglang.command import kv_tokens, sglang_command
from streamrl.engines.server.sglang.contract import SglangContract
from streamrl.engines.server.vllm.command import vllm_command
from streamrl.engines.server.vllm.contract import VllmContract
from streamrl.errors import ConfigError

CONTRACTS: dict[str, Callable[[Http, tuple[int, int] | None], ServerContract]] = {
    "vllm": lambda http, _: VllmContract(http),
    "sglang": SglangContract,
}
"""By `rollout.engine`: (server, layers and experts of a token where it names a token's experts)."""


def server_command(
    config: Config, python: Path, model_folder: Path, max_length: int, listens_at: Path
) -> ServerCommand:
    """The command line of the configured server, which listens on the Unix socket `listens_at`."""
    return _COMMANDS[config.rollout.engine](config, python, model_folder, max_length, listens_at)


def has_tokenizer(model_folder: Path) -> bool:
    """Whether a server of the model has tokens to follow a grammar over."""
    return (model_folder / "tokenizer.json").exists()


def route_size(model_folder: Path) -> tuple[int, int]:
    """Layers, and experts of a token, of a model that has experts in every layer. Raises ConfigError for another: what
    a server says of layers without them is not known."""
    facts, problems = read_folder(model_folder)
    if facts is None:
        raise ConfigError("; ".join(map(str, problems)))
    config = json.loads((model_folder / "config.json").read_bytes())
    dense = config.get("mlp_only_layers") or (config.get("decoder_sparse_step") or 1) != 1
    if not facts.num_experts or dense:
        raise ConfigError(
            f"learner.router_replay: not every layer of the model ({facts.model_type}) has experts; set false"
        )
    return facts.num_layers, facts.experts_per_token


def _vllm(config: Config, python: Path, model_folder: Path, max_length: int, listens_at: Path) -> ServerCommand:
    kv_bytes, seed = config.rollout.kv_bytes, config.seed
    common = _common(config, max_length)
    tokenizer = has_tokenizer(model_folder)
    return vllm_command(python, model_folder, listens_at, kv_bytes=kv_bytes, seed=seed, tokenizer=tokenizer, **common)


def _sglang(config: Config, python: Path, model_folder: Path, max_length: int, listens_at: Path) -> ServerCommand:
    facts, problems = read_folder(model_folder)
    if facts is None:
        raise ConfigError("; ".join(map(str, problems)))
    tokens = kv_tokens(facts, config.model.dtype, config.rollout.kv_bytes)
    cpus, common = sorted(os.sched_getaffinity(0)), _common(config, max_length)
    return sglang_command(python, model_folder, listens_at, kv_tokens=tokens, cpus=cpus, **common)


def _common(config: Config, max_length: int) -> dict[str, Any]:
    rollout = config.rollout
    return {
        "dtype": config.model.dtype,
        "device": rollout.device,
        "slots": rollout.slots,
        "context_length": max_length,
        "threads": rollout.threads,
        "tensor_parallel": rollout.server.tensor_parallel,
        "quantization": rollout.server.quantization,
        "routes": config.learner.router_replay,
        "further": rollout.server.args,
    }


_COMMANDS = {"vllm": _vllm, "sglang": _sglang}
