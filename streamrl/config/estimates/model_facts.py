"""What a check must know of a model, read from its folder without loading it: JSON files and safetensors
headers.

It imports no model library and reads no weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from streamrl.config.estimates.weight_files import Unreadable, count_parameters, read_object, refuse_adapters
from streamrl.config.problems import Problem

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What families call the number of experts in a layer."""
_NEEDED = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads")
_UNPACKED_AT_LOAD = ("fp8", "mxfp4")
"""Quantisations of which transformers makes plain weights."""


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


def read_folder(folder: Path, otherwise: str = "set model.preset") -> tuple[ModelFacts | None, list[Problem]]:
    """The facts of a Hugging Face model folder, and what is missing or wrong in it, all at once. otherwise: what can be
    done without one."""
    if not folder.is_dir():
        kind = "not a folder" if folder.exists() else "no such folder"
        return None, [_problem(f"{kind}: {folder}; give a Hugging Face model folder, or {otherwise}")]
    problems: list[Problem] = []
    _attempt(lambda: refuse_adapters(folder), problems)
    if problems:
        return None, problems
    config = _attempt(lambda: _model_config(folder), problems) or {}
    parameters = _attempt(lambda: count_parameters(folder), problems)
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
    _attempt(lambda: refuse_adapters(folder), problems)
    if problems:
        return None, problems
    config = _attempt(lambda: _classifier_config(folder), problems) or {}
    parameters = _attempt(lambda: count_parameters(folder), problems)
    if not (folder / "tokenizer.json").is_file():
        problems.append(_problem(f"no such file: {folder / 'tokenizer.json'}; save the model's fast tokenizer there"))
    if problems or parameters is None:
        return None, problems
    return ClassifierFacts(context=config.get("max_position_embeddings"), num_parameters=parameters), []


def _classifier_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = read_object(path)
    names = [str(name) for name in config.get("architectures") or ["no architecture"]]
    if not any(name.endswith("ForSequenceClassification") for name in names):
        raise Unreadable(f"{path} is of {', '.join(names)}, which scores nothing; give a sequence classifier")
    _require_plain(folder, config)
    labels = config.get("id2label")
    # Where neither is said, transformers takes two.
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count != 1:
        raise Unreadable(f"{path} has {count} labels, and a reward is one number; give a classifier of one label")
    return config


def _attempt(read: Any, problems: list[Problem]) -> Any:
    try:
        return read()
    except Unreadable as error:
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


def _require_plain(folder: Path, config: Mapping[str, Any]) -> None:
    """No code of its own, and weights that can be trained."""
    if "auto_map" in config:
        raise Unreadable(
            f"the model in {folder} brings its own Python code (auto_map in config.json), which streamrl does not run; "
            "where transformers knows its model_type by itself, take auto_map out"
        )
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
    if method is not None and method not in _UNPACKED_AT_LOAD:
        raise Unreadable(
            f"the weights in {folder} are quantised ({method}), and those cannot be trained; give the model that they "
            "were made from"
        )


def _model_config(folder: Path) -> dict[str, Any]:
    config = read_object(folder / "config.json")
    missing = [key for key in _NEEDED if key not in config]
    if missing:
        raise Unreadable(f"{folder / 'config.json'} lacks {', '.join(missing)}: not a decoder-only language model")
    _require_plain(folder, config)
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
            raise Unreadable(f"{folder / 'config.json'}: {key} is not {what}: {value!r}")
    return config


def _require_eos(folder: Path, config: dict[str, Any]) -> None:
    """A tokenizer that can say how a completion ends, by a token that it has."""
    base, added = _vocabulary(folder / "tokenizer.json")
    name = _if_there(folder / "tokenizer_config.json").get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    given = [file.get("eos_token_id") for file in (config, _if_there(folder / "generation_config.json"))]
    ids = [one for value in given for one in (value if isinstance(value, list) else [value]) if one is not None]
    if name is None and not ids:
        raise Unreadable(
            f"the tokenizer in {folder} has no end-of-sequence token; "
            "set eos_token in tokenizer_config.json or eos_token_id in config.json"
        )
    if name is not None and not ids and name not in base and name not in added:
        raise Unreadable(
            f"the tokenizer in {folder} names {name!r} as its end-of-sequence token and does not have it; "
            "set eos_token in tokenizer_config.json to a token of tokenizer.json"
        )
    size = config.get("vocab_size")
    # Tokens that were added may be of no use to the text: a picture's place, of a model that sees none.
    ids_of_text = (number for token, number in base.items() if token not in added and isinstance(number, int))
    highest = max(ids_of_text, default=0)
    if isinstance(size, int) and highest >= size:
        raise Unreadable(
            f"the tokenizer in {folder} has ids up to {highest}, and vocab_size in config.json is {size}; give the "
            "tokenizer and the config.json that belong to the weights"
        )
    wrong = [one for one in ids if not isinstance(one, int) or one < 0 or (isinstance(size, int) and one >= size)]
    if wrong:
        raise Unreadable(f"eos_token_id {wrong[0]!r} in {folder} is no token of the model, which has {size}")


def _if_there(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _vocabulary(path: Path) -> tuple[dict[str, int], set[str]]:
    """The tokens of a fast tokenizer's file with their ids, which it has as a table or as a list of (token, score); and
    those that were added."""
    file = read_object(path)
    model = file.get("model")
    tokens = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(tokens, dict | list):
        raise Unreadable(f"{path} holds no vocabulary; save a fast tokenizer there")
    added = file.get("added_tokens") or []
    listed = enumerate(tokens) if isinstance(tokens, list) else ((number, token) for token, number in tokens.items())
    base = {token if isinstance(token, str) else token[0]: number for number, token in listed if token}
    return base, {token["content"] for token in added if isinstance(token, dict) and "content" in token}
