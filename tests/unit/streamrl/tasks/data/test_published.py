"""GSM8K and MATH in the form in which they are published."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from support.data.chat_model import write_rows

from streamrl.errors import ConfigError
from streamrl.rewards.verifiers.boxed import last_boxed
from streamrl.tasks.data.published import write_data_set


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_gsm8k_as_parquet_of_two_splits(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "answer": "She has <<1000+234=1234>>1234.\n#### 1,234"}]
    folder = tmp_path / "main"
    folder.mkdir()
    for split in ("train", "test"):
        pa.parquet.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    assert write_data_set("gsm8k", str(tmp_path), tmp_path / "out") == {"train.jsonl": 1, "test.jsonl": 1}
    expected = {"question": "How many?", "answer": "1234", "solution": rows[0]["answer"]}
    assert lines(tmp_path / "out" / "train.jsonl") == lines(tmp_path / "out" / "test.jsonl") == [expected]


def test_math_as_jsonl_and_math_500_with_its_own_answers(tmp_path: Path) -> None:
    solution = r"Thus $x = \boxed{\frac{1}{2}}$, so \boxed{\text{odd}\ {3}}."
    rows = [{"problem": "x?", "solution": solution, "level": "Level 3", "type": "Algebra"}]
    rows.append({**rows[0], "answer": r"\frac{1}{2}"})
    address = str(write_rows(tmp_path / "m.jsonl", rows))
    assert write_data_set("math", address, tmp_path / "out") == {"train.jsonl": 2}
    first, second = lines(tmp_path / "out" / "train.jsonl")
    assert (first["answer"], second["answer"]) == (r"\text{odd}\ {3}", r"\frac{1}{2}")
    assert (first["question"], first["level"], first["type"]) == ("x?", "Level 3", "Algebra")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\fbox{a{b{c}}d}", "a{b{c}}d"),
        (r"$\boxed 7$ apples", "7"),
        (r"\boxed{7", None),
        ("seven", None),
        (r"\boxed{1} and \boxed{2}", "2"),
    ],
)
def test_what_a_box_holds(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("gsm8k", {"question": "q", "answer": "no mark"}, "row 1: column 'answer' has no '#### NUMBER'"),
        ("gsm8k", {"problem": "q"}, "row 1: no text in column 'question'; it has problem"),
        ("math", {"problem": "q", "solution": "no box"}, r"row 1: column 'solution' has no \\boxed"),
        ("math", "{", "row 1: not JSON"),
    ],
)
def test_rows_of_something_else_are_refused_by_file_and_row(name: str, row: object, words: str, tmp_path: Path) -> None:
    address = str(write_rows(tmp_path / "a.jsonl", [row]))
    with pytest.raises(ConfigError, match=f"a.jsonl: {words}"):
        write_data_set(name, address, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
