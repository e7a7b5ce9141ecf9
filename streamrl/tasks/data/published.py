"""GSM8K and MATH as they are published, written as JSONL files of `question` and `answer`.

GSM8K (Cobbe et al. 2021): columns `question`, `answer`; the answer ends in `#### 1,234`, which becomes `1234`. MATH
(Hendrycks et al. 2021): columns `problem`, `solution`, `level`, `type`; the answer is what the solution's last
`\\boxed{}` holds, or its `answer` column where it has one (MATH-500). The worked solution is kept as `solution`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from streamrl.errors import ConfigError
from streamrl.rewards.verifiers.boxed import last_boxed
from streamrl.tasks.data.addresses import Hub, find
from streamrl.tasks.data.hub import read_hub
from streamrl.tasks.data.readers import RawRow, read_rows
from streamrl.tasks.data.values import as_json, plain

Row = dict[str, Any]


def write_data_set(name: str, path: str, to: Path) -> dict[str, int]:
    """Write `train.jsonl` and `test.jsonl`; rows of each. Where the address has one split or is one file, that file
    alone. Raises ConfigError for rows that are not of that data set."""
    convert = _CONVERT[name]
    to.mkdir(parents=True, exist_ok=True)
    counts = {}
    for file, use in (("train.jsonl", "train"), ("test.jsonl", "eval")):
        if use == "eval" and ("#" in path or Path(path).is_file()):
            continue
        fresh = to / f".{file}.new"
        try:
            counts[file] = _write(convert, path, use, fresh)
        finally:
            if file not in counts:
                fresh.unlink(missing_ok=True)
        fresh.replace(to / file)
    return counts


def _write(convert: Callable[[Row], Row], path: str, use: str, to: Path) -> int:
    count = 0
    with open(to, "w", encoding="utf-8") as file:
        for source, row in _rows(path, use):
            try:
                if not isinstance(row.value, dict):
                    raise ValueError(row.value.reason)
                converted = convert(row.value)
            except ValueError as error:
                raise ConfigError(f"data {source}: row {row.number}: {error}") from error
            file.write(as_json(converted) + "\n")
            count += 1
    return count


def _rows(path: str, use: str) -> Iterator[tuple[str, RawRow]]:
    found = find(path, use)
    if isinstance(found, Hub):
        yield from ((path, row) for row in read_hub(found, use))
        return
    for file in found:
        yield from ((str(file.path), row) for row in read_rows(file))


def _gsm8k(row: Row) -> Row:
    question, solution = _texts(row, "question", "answer")
    _, mark, answer = solution.rpartition("####")
    if not mark or not answer.strip():
        raise ValueError("column 'answer' has no '#### NUMBER' at its end; is this GSM8K?")
    return {"question": question, "answer": answer.strip().replace(",", ""), "solution": solution}


def _math(row: Row) -> Row:
    question, solution = _texts(row, "problem", "solution")
    answer = row.get("answer") or last_boxed(solution)
    if answer is None:
        raise ValueError("column 'solution' has no \\boxed{...}; is this MATH?")
    more: Row = {name: plain(row[name]) for name in ("level", "type", "subject", "unique_id") if name in row}
    return {"question": question, "answer": plain(answer), "solution": solution, **more}


def _texts(row: Row, *names: str) -> tuple[str, ...]:
    missing = [name for name in names if not isinstance(row.get(name), str)]
    if missing:
        raise ValueError(f"no text in column {missing[0]!r}; it has {', '.join(row)}")
    return tuple(row[name] for name in names)


_CONVERT: dict[str, Callable[[Row], Row]] = {"gsm8k": _gsm8k, "math": _math}
