"""Where prepared prompts are kept, and when they may be taken again.

Guarantees that a folder is taken again only for the same files (path, size, time of change), the same settings and the
same tokenizer and chat template; that several processes may prepare at once; and that nothing half done is ever opened.
What a data set of the hub holds is not looked at again: remove the folder to read it anew.
"""

import json
import shutil
import tempfile
from pathlib import Path

import msgspec
import xxhash

from streamrl.config.schema.data import DataConfig
from streamrl.errors import ConfigError
from streamrl.models.chat_template import load_chat_template
from streamrl.models.tokenizer import load_tokenizer
from streamrl.system.cache_folder import cache_folder
from streamrl.tasks.data.addresses import DataFile, Hub
from streamrl.tasks.data.prepare import Report, prepare, sources
from streamrl.tasks.data.store import read_meta
from streamrl.tasks.data.task import DataTask, DemonstratedDataTask
from streamrl.tasks.data.templating import Renderer

LAYOUT = 3
"""Of the folder; another one is prepared anew."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json")


def open_data(data: DataConfig, model: Path, max_tokens: int, report: Report = lambda _rows: None) -> DataTask:
    """The prompts of `data` for the model in that folder, prepared now where they are not yet. max_tokens: of a prompt.

    report: as of `prepare`. Raises ConfigError for data that cannot be used."""
    key = _key(data, model, max_tokens)
    root = _root(data)
    folder = root / key
    if read_meta(folder) is None:
        _prepare(data, model, max_tokens, folder, report)
    make = DemonstratedDataTask if "demonstration" in (data.columns or {}) else DataTask
    task = make(folder, data.weights)
    empty = [address for address, count in zip(data.train_addresses, task.part_sizes, strict=True) if not count]
    if empty and data.weights:
        raise ConfigError(f"data.train: {empty[0]!r} has no prompt to train on; leave it and its weight out")
    return task


def _prepare(data: DataConfig, model: Path, max_tokens: int, folder: Path, report: Report) -> None:
    renderer = Renderer(data, load_tokenizer(model), load_chat_template(model))
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        prepare(data, renderer, max_tokens, fresh, report)
        if folder.exists() and read_meta(folder) is None:
            shutil.rmtree(folder)  # what an earlier process left damaged
        try:
            fresh.rename(folder)
        except OSError:
            if read_meta(folder) is None:  # else another process was faster, with the same prompts
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _key(data: DataConfig, model: Path, max_tokens: int) -> str:
    # Addresses count by what they mean: the same file may be called in several ways.
    settings = msgspec.to_builtins(msgspec.structs.replace(data, train=None, eval=None, cache=None, weights=()))
    stamps = [[use, name, [_stamp(one) for one in found]] for use, name, found in sources(data)]
    facts = [LAYOUT, settings, max_tokens, stamps, _tokenizer_digest(model)]
    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())


def _stamp(source: DataFile | Hub) -> list[object]:
    if isinstance(source, Hub):
        return list(source)
    facts = source.path.stat()
    return [str(source.path.resolve()), facts.st_size, facts.st_mtime_ns, *source.partition]


def _tokenizer_digest(model: Path) -> str:
    state = xxhash.xxh3_128()
    more = sorted([*model.glob("*.jinja"), *model.glob("additional_chat_templates/*.jinja")])
    for path in [*(model / name for name in TOKENIZER_FILES), *more]:
        if path.is_file():
            state.update(path.name.encode() + b"\x00" + path.read_bytes())
    return state.hexdigest()


def _root(data: DataConfig) -> Path:
    """The folder of prepared prompts. Raises ConfigError for one that is named and cannot be written."""
    if data.cache is not None:
        root = Path(data.cache).expanduser()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"data.cache = {data.cache!r} cannot be made: {error.strerror}; name another") from error
        return root
    if (found := cache_folder("data")) is None:
        raise ConfigError(
            f"neither ~/.cache nor {tempfile.gettempdir()} can be written; set data.cache to a folder that can"
        )
    return found
