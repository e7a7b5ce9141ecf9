"""`streamrl data`: what a configuration's data is, what the model gets of a row, and published data sets as files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrl.config import Config, load_args
from streamrl.errors import ConfigError
from streamrl.services.launch.prepared_data import prepare_data, told
from streamrl.services.launch.tokenizer_folder import tokenizer_folder

if TYPE_CHECKING:
    from streamrl.tasks.data.report import DataReport
    from streamrl.tasks.data.task import DataTask

BAR = 40  # characters of the longest bar


def data_lines(config: Config) -> list[str]:
    """Prepare the data that a configuration has, and say what was found; [] for a task that is a class."""
    task = prepare_data(config)
    return [] if task is None else told(task.meta)


def check_data(config: str, rest: Sequence[str], as_json: bool) -> int:
    """Print what there is. Raises ConfigError for data that cannot be used."""
    # Here and not above: `check` of a configuration without data reads no rows.
    from streamrl.models.tokenizer import load_tokenizer
    from streamrl.tasks.data.report import report_of

    loaded = load_args(config, rest)
    task = _task(loaded)
    with tokenizer_folder(loaded.model) as folder:
        report = report_of(task, load_tokenizer(folder))
    if as_json:
        print(json.dumps(report.as_dict()))
        return 0
    print("\n".join([*told(task.meta), *_lines(report)]))
    return 0


def show_prompt(config: str, rest: Sequence[str], row: int, held_out: bool, as_json: bool) -> int:
    """Print one prompt. Raises ConfigError for a number that there is none of."""
    from streamrl.models.tokenizer import load_tokenizer  # as above
    from streamrl.tasks.prompts import prompt_ids

    loaded = load_args(config, rest)
    task = _task(loaded)
    count, which = (task.num_held_out, "held-out ") if held_out else (task.num_train, "")
    if not 0 <= row < count:
        raise ConfigError(f"there is no {which}prompt {row}: give a number from 0 to {count - 1}")
    prompt = task.held_out(row) if held_out else task.train(row)
    with tokenizer_folder(loaded.model) as folder:
        tokenizer = load_tokenizer(folder)
    ids = prompt_ids(prompt, tokenizer)
    text = tokenizer.decode(ids, special_tokens=True)
    payload = json.loads(prompt.payload)
    if as_json:
        print(json.dumps({"id": prompt.prompt_id, "text": text, "ids": ids.tolist(), "payload": payload}))
        return 0
    print(f"prompt {prompt.prompt_id}, {len(ids)} tokens")
    print(f"text     {text!r}")
    print(f"ids      {' '.join(map(str, ids.tolist()))}")
    print(f"payload  {json.dumps(payload, ensure_ascii=False, indent=2)}")
    return 0


def write_published(name: str, path: str, to: Path) -> int:
    """Write the files and say what they hold. Raises ConfigError for files that are not of that data set."""
    from streamrl.tasks.data.published import write_data_set

    counts = write_data_set(name, path, to)
    for file, count in counts.items():
        print(f"{to / file}: {count} rows")
    return 0


def _task(config: Config) -> "DataTask":
    task = prepare_data(config)
    if task is None:
        raise ConfigError(f"task.name = {config.task.name!r} is a class, not data; set data.train to a file")
    return task


def _lines(report: "DataReport") -> list[str]:
    most = max((count for _, _, count in report.lengths), default=1)
    lines = ["tokens of a prompt:"]
    for low, high, count in report.lengths:
        lines.append(f"  {f'{low}-{high}':>11} {count:>9} {'#' * -(-count * BAR // most)}")
    facts: dict[str, Any] = {
        "training prompts without an answer": report.without_answer,
        "training prompts whose text came before": report.duplicates,
        "evaluation prompts that are trained on, too": report.leaked,
    }
    lines += [f"{name}: {count}" for name, count in facts.items()]
    return lines + [f"  evaluation prompt {held_out} is training prompt {train}" for held_out, train in report.leaks]
