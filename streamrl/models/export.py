"""A trained model as a complete Hugging Face folder.

Guarantees that what stands at the place asked for is whole (written beside it, synced, renamed) and has every
weight that the model it came from has, in that shape and finite. It does not know where the tensors come
from.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from streamrl.errors import DataError, NonFiniteError
from streamrl.models.experts import as_in_checkpoint
from streamrl.models.folders import MARK, read_json, write_folder

SHARD_BYTES = 4 * 2**30  # tensors of one file are held in memory at once
NOT_COPIED = {MARK, "model.safetensors.index.json", "pytorch_model.bin.index.json"}
UNTRAINED = ("e_score_correction_bias",)
"""Ends of the names of tensors that are no parameters: they stay as they are in the folder."""
COPIED_SUFFIXES = (".json", ".txt", ".model", ".jinja")  # configs, vocabularies, chat templates; never code

NamedTensors = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def export_hf(
    tensors: NamedTensors,
    model_folder: str | Path,
    out_folder: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write `tensors` (Hugging Face names, full shapes) and the other files of `model_folder` to
    `out_folder`.

    The result loads with `AutoModelForCausalLM.from_pretrained`. An earlier export is replaced; any other
    folder is refused with ConfigError. Raises DataError when names or shapes are not those of `model_folder`
    (a tied head may be left out), and NonFiniteError naming the tensor."""
    source, out = Path(model_folder), Path(out_folder)
    write_folder(out, {"export": True}, lambda fresh: _fill(fresh, tensors, source, shard_bytes))
    return out


def _fill(fresh: Path, tensors: NamedTensors, source: Path, shard_bytes: int) -> None:
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    dtypes: dict[str, str] = {}
    shapes = _shapes(source)
    _write_weights(fresh, _checked(as_in_checkpoint(pairs, shapes), shapes, source, dtypes), shard_bytes)
    copy_small_files(source, fresh)
    _write_config(fresh, read_json(source / "config.json"), dtypes)


def copy_small_files(source: Path, fresh: Path) -> None:
    """Copy configs, vocabularies and templates of a model folder, but for what `fresh` has already."""
    for path in sorted(source.iterdir()):
        if path.suffix in COPIED_SUFFIXES and path.name not in NOT_COPIED and not (fresh / path.name).exists():
            shutil.copyfile(path, fresh / path.name)


def _shapes(source: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in the folder's safetensors files, read from their headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
    return shapes


def _read(source: Path, name: str) -> torch.Tensor:
    """A tensor of the folder that has it."""
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118 - not a mapping
                tensor: torch.Tensor = file.get_tensor(name)
                return tensor
    raise DataError(f"export: {name} is no tensor of the model in {source}")


def _checked(
    pairs: Iterable[tuple[str, torch.Tensor]],
    expected: dict[str, tuple[int, ...]],
    source: Path,
    dtypes: dict[str, str],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Pass tensors on, each checked; note the number format of each in `dtypes`; at the end none may be
    missing."""
    tied = read_json(source / "config.json").get("tie_word_embeddings", False)
    optional = {"lm_head.weight"} if tied else set()
    for name, tensor in pairs:
        if name not in expected and name not in optional:
            raise DataError(f"export: {name} is no weight of the model in {source}")
        if name in expected and tuple(tensor.shape) != expected[name]:
            raise DataError(f"export: {name} has shape {tuple(tensor.shape)}, the model {expected[name]}")
        if not bool(torch.isfinite(tensor).all()):
            raise NonFiniteError(f"export: {name} holds a value that is not finite; nothing was written")
        dtypes[name] = str(tensor.dtype).removeprefix("torch.")
        if name not in optional:  # a tied head is the embedding: loading ties it again
            yield name, tensor.detach().cpu().contiguous()
    for name in sorted(set(expected) - set(dtypes)):
        if name.endswith(UNTRAINED):
            tensor = _read(source, name)
            dtypes[name] = str(tensor.dtype).removeprefix("torch.")
            yield name, tensor
    missing = sorted(set(expected) - set(dtypes) - optional)
    if missing:
        raise DataError(f"export: {len(missing)} weights are missing, {missing[0]} among them")


def _write_weights(folder: Path, pairs: Iterable[tuple[str, torch.Tensor]], shard_bytes: int) -> None:
    shards: list[list[str]] = []
    total = 0
    for number, shard in enumerate(_shards(pairs, shard_bytes)):
        save_file(shard, folder / f"shard-{number}", metadata={"format": "pt"})
        shards.append(list(shard))
        total += sum(tensor.nbytes for tensor in shard.values())
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{number}").rename(folder / file)
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _shards(pairs: Iterable[tuple[str, torch.Tensor]], shard_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in pairs:
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _write_config(folder: Path, config: dict[str, object], dtypes: dict[str, str]) -> None:
    formats = set(dtypes.values())
    if len(formats) == 1:  # what `dtype="auto"` goes by
        _write_json(folder / "config.json", {**config, "dtype": formats.pop()})
    generation = folder / "generation_config.json"
    if not generation.exists():
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        _write_json(generation, {key: config[key] for key in ids if config.get(key) is not None})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
