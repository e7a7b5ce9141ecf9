"""What a check must know of a model, read from its folder without loading it: JSON files and safetensors
headers.

It imports no model library and reads no weights.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from streamrl.config.problems import Problem

_HEADER_LIMIT = 100 * 2**20  # the safetensors format's own bound of a header
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What families call the number of experts in a layer."""
_NEEDED = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads")


class ModelFacts(Struct, frozen=True, kw_only=True):
    """Sizes of a causal language model. `context` is in tokens, None where the model names no limit; intermediate_size
    is of the MLP, four times the hidden size where the model does not say. num_experts: of a layer, 0 where a layer has
    none; expert_size: the inner size of one; experts_per_token: those that a token goes to. ties_embeddings: whether
    the output layer is the embedding. critic_parameters: of the run's critic, where that begins with another model.
    reward_parameters, reward_context: of the run's reward model, None without one; the context also where it names no
    limit."""

    model_type: str
    context: int | None
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    num_parameters: int
    vocab_size: int = 1
    num_experts: int = 0
    expert_size: int = 0
    experts_per_token: int = 0
    ties_embeddings: bool = False
    critic_parameters: int | None = None
    reward_parameters: int | None = None
    reward_context: int | None = None


class ClassifierFacts(Struct, frozen=True, kw_only=True):
    """Sizes of a sequence classifier of one label. `context` as in `ModelFacts`."""

    context: int | None
    num_parameters: int


class _Unreadable(ValueError):
    """A file of the model folder is not what it should be; the text says which and why."""


def read_folder(folder: Path, otherwise: str = "set model.preset") -> tuple[ModelFacts | None, list[Problem]]:
    """The facts of a Hugging Face model folder, and what is missing or wrong in it, all at once. otherwise: what can be
    done without one."""
    if not folder.is_dir():
        kind = "not a folder" if folder.exists() else "no such folder"
        return None, [_problem(f"{kind}: {folder}; give a Hugging Face model folder, or {otherwise}")]
    problems: list[Problem] = []
    config = _attempt(lambda: _model_config(folder), problems) or {}
    parameters = _attempt(lambda: _count_parameters(folder), problems)
    _attempt(lambda: _require_eos(folder, config), problems)
    if problems or parameters is None:
        return None, problems
    return facts_of(config, parameters), []


def read_classifier(folder: Path) -> tuple[ClassifierFacts | None, list[Problem]]:
    """The facts of a Hugging Face folder with a sequence classifier of one label, and what is missing or wrong in it,
    all at once. Its tokenizer is looked at where it is compared with the policy's."""
    if not folder.is_dir():
        kind = "not a folder" if folder.exists() else "no such folder"
        return None, [_problem(f"{kind}: {folder}; give one that `streamrl reward-model` wrote, or leave this key out")]
    problems: list[Problem] = []
    config = _attempt(lambda: _classifier_config(folder), problems) or {}
    parameters = _attempt(lambda: _count_parameters(folder), problems)
    if not (folder / "tokenizer.json").is_file():
        problems.append(_problem(f"no such file: {folder / 'tokenizer.json'}; save the model's fast tokenizer there"))
    if problems or parameters is None:
        return None, problems
    return ClassifierFacts(context=config.get("max_position_embeddings"), num_parameters=parameters), []


def _classifier_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = _read_json(path)
    names = [str(name) for name in config.get("architectures") or ["no architecture"]]
    if not any(name.endswith("ForSequenceClassification") for name in names):
        raise _Unreadable(f"{path} is of {', '.join(names)}, which scores nothing; give a sequence classifier")
    if "auto_map" in config:
        raise _Unreadable(f"the model in {folder} brings its own Python code, which streamrl does not run")
    labels = config.get("id2label")
    # Where neither is said, transformers takes two.
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count != 1:
        raise _Unreadable(f"{path} has {count} labels, and a reward is one number; give a classifier of one label")
    return config


def _attempt(read: Any, problems: list[Problem]) -> Any:
    try:
        return read()
    except _Unreadable as error:
        problems.append(_problem(str(error)))
        return None


def _problem(what: str) -> Problem:
    return Problem(key="model.path", what=what)


def facts_of(config: Mapping[str, Any], num_parameters: int) -> ModelFacts:
    """The facts in the values of a Hugging Face decoder's configuration."""
    heads = config["num_attention_heads"]
    experts = next((config[key] for key in _EXPERTS if config.get(key)), 0)
    intermediate = config.get("intermediate_size") or 4 * config["hidden_size"]
    return ModelFacts(
        model_type=str(config["model_type"]),
        context=config.get("max_position_embeddings"),
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        hidden_size=config["hidden_size"],
        intermediate_size=intermediate,
        num_parameters=num_parameters,
        vocab_size=config.get("vocab_size") or 1,
        num_experts=experts,
        experts_per_token=(config.get("num_experts_per_tok") or 1) if experts else 0,
        expert_size=(config.get("moe_intermediate_size") or intermediate) if experts else 0,
        ties_embeddings=bool(config.get("tie_word_embeddings")),
    )


def _model_config(folder: Path) -> dict[str, Any]:
    config = _read_json(folder / "config.json")
    missing = [key for key in _NEEDED if key not in config]
    if missing:
        raise _Unreadable(f"{folder / 'config.json'} lacks {', '.join(missing)}: not a decoder-only language model")
    sizes = ("max_position_embeddings", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size")
    of_experts = (
        *_EXPERTS,
        "moe_intermediate_size",
        "num_experts_per_tok",
    )  # a model of a family that may have some says 0 where it has none
    for key in (*_NEEDED[1:], *sizes, *of_experts):
        value, least = config.get(key), 0 if key in of_experts else 1
        if value is not None and (not isinstance(value, int) or value < least):
            what = "a positive integer" if least else "an integer from 0 on"
            raise _Unreadable(f"{folder / 'config.json'}: {key} is not {what}: {value!r}")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _Unreadable(f"no such file: {path}; the folder is not a complete Hugging Face model") from None
    except (OSError, ValueError) as error:
        raise _Unreadable(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise _Unreadable(f"{path} is not a JSON object")
    return value


def _require_eos(folder: Path, config: dict[str, Any]) -> None:
    """A tokenizer that can say how a completion ends, by a token that it has."""
    vocabulary = _vocabulary(folder / "tokenizer.json")
    name = _if_there(folder / "tokenizer_config.json").get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    given = [file.get("eos_token_id") for file in (config, _if_there(folder / "generation_config.json"))]
    ids = [one for value in given for one in (value if isinstance(value, list) else [value]) if one is not None]
    if name is None and not ids:
        raise _Unreadable(
            f"the tokenizer in {folder} has no end-of-sequence token; "
            "set eos_token in tokenizer_config.json or eos_token_id in config.json"
        )
    if name is not None and not ids and name not in vocabulary:
        raise _Unreadable(
            f"the tokenizer in {folder} names {name!r} as its end-of-sequence token and does not have it; "
            "set eos_token in tokenizer_config.json to a token of tokenizer.json"
        )
    size = config.get("vocab_size")
    wrong = [one for one in ids if not isinstance(one, int) or one < 0 or (isinstance(size, int) and one >= size)]
    if wrong:
        raise _Unreadable(f"eos_token_id {wrong[0]!r} in {folder} is no token of the model, which has {size}")


def _if_there(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.exists() else {}


def _vocabulary(path: Path) -> set[str]:
    """All tokens of a fast tokenizer's file: a table of ids, or a list of (token, score), and what was added."""
    file = _read_json(path)
    model = file.get("model")
    tokens = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(tokens, dict | list):
        raise _Unreadable(f"{path} holds no vocabulary; save a fast tokenizer there")
    added = file.get("added_tokens") or []
    known = {token if isinstance(token, str) else token[0] for token in tokens if token}
    return known | {token["content"] for token in added if isinstance(token, dict) and "content" in token}


def _count_parameters(folder: Path) -> int:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _Unreadable(f"no *.safetensors in {folder}; formats that can carry code are refused")
    return sum(_elements(path) for path in files)


def _elements(path: Path) -> int:
    """Elements of all tensors in one safetensors file, from its header."""
    header = _safetensors_header(path)
    header.pop("__metadata__", None)
    _require_whole(header, path)
    return sum(math.prod(shape) for shape in _shapes(header, path))


def _require_whole(header: dict[str, Any], path: Path) -> None:
    """The file has as many bytes as its header says: a copy that broke off has fewer."""
    ends = [entry.get("data_offsets") for entry in header.values() if isinstance(entry, dict)]
    size = max((end[1] for end in ends if isinstance(end, list) and len(end) == 2), default=0)
    with path.open("rb") as file:
        needed = 8 + struct.unpack("<Q", file.read(8))[0] + size
    if path.stat().st_size < needed:
        raise _Unreadable(f"{path} is cut off: it has {path.stat().st_size} bytes of {needed}; copy it again")


def _shapes(header: dict[str, Any], path: Path) -> Iterator[list[int]]:
    for name, entry in header.items():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise _Unreadable(f"{path} is damaged: tensor {name} has no shape")
        yield shape


def _safetensors_header(path: Path) -> dict[str, Any]:
    """Source: the format's description, 8 bytes of little-endian length, then that much JSON."""
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _HEADER_LIMIT + 1
            text = file.read(length) if length <= _HEADER_LIMIT else b""
        header = json.loads(text)
    except (OSError, ValueError) as error:
        raise _Unreadable(f"cannot read {path}: {error}") from None
    if not isinstance(header, dict):
        raise _Unreadable(f"{path} is damaged: its header is not a JSON object")
    return header
