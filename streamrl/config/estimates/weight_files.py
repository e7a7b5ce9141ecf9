"""The weight files of a Hugging Face model folder, by their headers: which are loaded, and whether they are whole.

It imports no model library and reads no weights.
"""

import codecs
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER_LIMIT = 100 * 2**20  # the safetensors format's own bound of a header
_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_ADAPTERS = "adapter_config.json"
_POINTER = b"version https://git-lfs"
Shape = tuple[int, ...]


class Unreadable(ValueError):
    """A file of the model folder is not what it should be; the text says which and why."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises Unreadable."""
    try:
        content = path.read_bytes()
        _refuse_pointer(path, content)
        if content.startswith(codecs.BOM_UTF8):
            raise Unreadable(f"{path} begins with a byte-order mark, which transformers does not read; save it without")
        value = json.loads(content)
    except FileNotFoundError:
        raise Unreadable(f"no such file: {path}; the folder is not a complete Hugging Face model") from None
    except Unreadable:
        raise  # it is a ValueError, too
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{path} is not a JSON object")
    return value


def refuse_adapters(folder: Path) -> None:
    """Raise Unreadable for a folder of peft's: it holds what is added to a model that lies elsewhere.

    transformers would load that other model by the name in it, whatever weights lie beside it."""
    if not (folder / _ADAPTERS).is_file():
        return
    base = read_object(folder / _ADAPTERS).get("base_model_name_or_path")
    if (folder / "config.json").is_file():
        raise Unreadable(
            f"{folder} has {_ADAPTERS} beside config.json, and transformers would load the model that it names "
            f"({base!r}); move it and adapter_model.safetensors out of the folder"
        )
    raise Unreadable(
        f"{folder} has the adapters of a model (peft), and not the model, which is {base!r}; give that one's folder, "
        "or merge them: `AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload().save_pretrained(merged)`, "
        "and save the tokenizer there"
    )


def count_parameters(folder: Path) -> int:
    """Elements of all tensors that transformers loads. Raises Unreadable for files that are missing, cut off or
    damaged, and for weights that are no floating-point numbers."""
    return sum(_elements(path) for path in weight_files(folder))


def tensor_shapes(folder: Path) -> dict[str, Shape]:
    """The shape of each tensor that transformers loads, by its name. Raises Unreadable."""
    shapes: dict[str, Shape] = {}
    for path in weight_files(folder):
        header = _safetensors_header(path)
        header.pop("__metadata__", None)
        shapes |= dict(zip(header, map(tuple, _shapes(header, path)), strict=True))
    return shapes


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers loads: `model.safetensors`, else those that the index names. Others may lie beside
    them. Raises Unreadable."""
    if (folder / _ONE_FILE).is_file():
        return [folder / _ONE_FILE]
    files = sorted(one.name for one in folder.glob("*.safetensors"))
    if not files and not (folder / _INDEX).is_file():
        raise Unreadable(f"no *.safetensors in {folder}; formats that can carry code are refused")
    if not (folder / _INDEX).is_file():
        raise Unreadable(
            f"{folder} has {', '.join(files[:3])} and neither {_ONE_FILE} nor {_INDEX}; copy what is missing"
        )
    named = read_object(folder / _INDEX).get("weight_map")
    shards = sorted({str(one) for one in named.values()}) if isinstance(named, dict) else []
    missing = [one for one in shards if not (folder / one).is_file()]
    if missing or not shards:
        what = f"names {missing[0]}, which is not there" if missing else "names no files"
        raise Unreadable(f"{folder / _INDEX} {what}; copy the folder again")
    return [folder / one for one in shards]


def _refuse_pointer(path: Path, content: bytes) -> None:
    if content.startswith(_POINTER):
        raise Unreadable(f"{path} is a pointer of Git LFS; fetch the file itself with `git lfs pull`")


def _elements(path: Path) -> int:
    """Elements of all tensors in one safetensors file, from its header."""
    header = _safetensors_header(path)
    header.pop("__metadata__", None)
    _require_whole(header, path)
    _require_floats(header, path)
    return sum(math.prod(shape) for shape in _shapes(header, path))


def _require_whole(header: dict[str, Any], path: Path) -> None:
    """The file has as many bytes as its header says: a copy that broke off has fewer."""
    ends = [entry.get("data_offsets") for entry in header.values() if isinstance(entry, dict)]
    size = max((end[1] for end in ends if isinstance(end, list) and len(end) == 2), default=0)
    with path.open("rb") as file:
        needed = 8 + struct.unpack("<Q", file.read(8))[0] + size
    if path.stat().st_size < needed:
        raise Unreadable(f"{path} is cut off: it has {path.stat().st_size} bytes of {needed}; copy it again")


def _require_floats(header: dict[str, Any], path: Path) -> None:
    """Whole numbers are quantised weights, and would be taken for the weights themselves."""
    for name, entry in header.items():
        kind = entry.get("dtype") if isinstance(entry, dict) else None
        if name.endswith(".weight") and isinstance(kind, str) and kind not in _FLOATS:
            raise Unreadable(f"{path}: {name} is of {kind}, no floating-point numbers; give the unquantised model")


def _shapes(header: dict[str, Any], path: Path) -> Iterator[list[int]]:
    for name, entry in header.items():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            raise Unreadable(f"{path} is damaged: tensor {name} has no shape")
        yield shape


def _safetensors_header(path: Path) -> dict[str, Any]:
    """Source: the format's description, 8 bytes of little-endian length, then that much JSON."""
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _HEADER_LIMIT + 1
            _refuse_pointer(path, prefix + file.read(len(_POINTER)))
            file.seek(8)
            text = file.read(length) if length <= _HEADER_LIMIT else b""
        header = json.loads(text)
    except Unreadable:
        raise  # it is a ValueError, too
    except (OSError, ValueError) as error:
        raise Unreadable(f"cannot read {path}: {error}") from None
    if not isinstance(header, dict):
        raise Unreadable(f"{path} is damaged: its header is not a JSON object")
    return header
