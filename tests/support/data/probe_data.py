"""What `[data]` makes of two small files, for the probes of its keys."""

import json
from pathlib import Path
from typing import Any

import msgspec
from support.data.chat_model import write_chat_tokenizer, write_rows

from streamrl.config import Config
from streamrl.errors import ConfigError
from streamrl.models.tokenizer import load_tokenizer
from streamrl.tasks.data.cache import open_data
from streamrl.tasks.order import order_of
from streamrl.tasks.prompts import prompt_ids

FEW = [{"prompt": f"few {n}", "other": f"other {n}", "answer": "1"} for n in range(9)]
MANY = [{"prompt": f"many {n}", "other": "o", "answer": "2"} for n in range(30)]
LONG = [{"prompt": "x" * 200}, {"prompt": "short"}]
BROKEN = ["{", "{", {"prompt": "whole"}]
FILES: dict[str, list[Any]] = {"few": FEW, "many": MANY, "long": LONG, "broken": BROKEN}
FIRST = 40


def prompts_of_data(config: Config, folder: Path) -> Any:
    """The first prompts in data order and the held-out ones, with their ids and payloads; or what is said instead.

    An address of the configuration is one of FILES."""
    for name, rows in FILES.items():
        write_rows(folder / f"{name}.jsonl", rows)
    model = write_chat_tokenizer(folder / "model")
    data = config.training_data
    assert data is not None
    data = msgspec.structs.replace(
        data,
        train=tuple(_in(folder, address) for address in data.train_addresses),
        eval={name: _in(folder, address) for name, address in data.eval_addresses.items()} or None,
        cache=str(folder / (data.cache or "cache")),
    )
    try:
        task = open_data(data, model, data.max_prompt_tokens or 10**6)
    except ConfigError as error:
        return str(error).replace(str(folder), "")
    order, tokenizer = order_of(task, config.seed), load_tokenizer(model)
    prompts = [task.train(order.at(place)[1]) for place in range(FIRST)]
    prompts += [task.held_out(index) for index in range(task.num_held_out)]
    told = [(json.loads(one.payload), prompt_ids(one, tokenizer).tolist()) for one in prompts]
    return [told, task.held_out_sets, sorted(path.name for path in folder.iterdir())]


def _in(folder: Path, address: str) -> str:
    return str(folder / f"{Path(address).stem}.jsonl")
