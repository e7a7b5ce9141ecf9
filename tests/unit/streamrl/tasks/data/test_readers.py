"""Rows come out of every format as they went in; what cannot be read is said, with its number."""

import bz2
import csv
import datetime
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from streamrl.errors import ConfigError
from streamrl.tasks.data.addresses import find
from streamrl.tasks.data.readers import BATCH_ROWS, CHUNK, Broken, RawRow, read_rows

ROWS = [{"question": f"héllo {number}", "answer": str(number)} for number in range(2 * BATCH_ROWS + 7)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def csv_of(path: Path, delimiter: str) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["question", "answer"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


def write_arrow(table: pa.Table, path: Path) -> None:
    new: Any = pa.ipc.new_file if path.stem == "file" else pa.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def write_arrow_rows(path: Path) -> None:
    write_arrow(pa.Table.from_pylist(ROWS), path)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.jsonl": lambda path: path.write_text(LINES, "utf-8"),
    "a.ndjson": lambda path: path.write_text(LINES, "utf-8"),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "a.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(LINES.encode())),
    "a.jsonl.xz": lambda path: path.write_bytes(lzma.compress(LINES.encode())),
    "a.jsonl.ZSTD": lambda path: path.write_bytes(pa.compress(LINES.encode(), "zstd", asbytes=True)),
    "a.jsonlines": lambda path: path.write_text(LINES, "utf-8"),
    "commas.jsonl": lambda path: path.write_text(LINES.replace("}\n", "},\r\n"), "utf-8"),
    "objects.jsonl": lambda path: path.write_text("\n".join(json.dumps(row, indent=2) for row in ROWS), "utf-8"),
    "objects.json": lambda path: path.write_text("\n".join(json.dumps(row, indent=2) for row in ROWS), "utf-8"),
    "dense-objects.json": lambda path: path.write_text(LINES.replace("\n", ""), "utf-8"),
    "held.jsonl": lambda path: path.write_text(json.dumps({"data": ROWS}, indent=2), "utf-8"),
    "a.jsonl.zst": lambda path: path.write_bytes(pa.compress(LINES.encode(), "zstd", asbytes=True)),
    "a.json": lambda path: path.write_text(json.dumps(ROWS, indent=2), "utf-8"),
    "dense.json": lambda path: path.write_text(json.dumps(ROWS, separators=(",", ":")), "utf-8"),
    "lines.json": lambda path: path.write_text("\ufeff" + LINES, "utf-8"),
    "list.jsonl": lambda path: path.write_text(json.dumps(ROWS), "utf-8"),
    "indented.jsonl": lambda path: path.write_text("\n\n" + json.dumps(ROWS, indent=2), "utf-8"),
    "blank.json": lambda path: path.write_text("\n \n" + json.dumps(ROWS), "utf-8"),
    "a.csv": lambda path: csv_of(path, ","),
    "a.tsv": lambda path: csv_of(path, "\t"),
    "a.parquet": lambda path: pa.parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=100),
    "stream.arrow": write_arrow_rows,
    "file.arrow": write_arrow_rows,
    "a.feather": lambda path: pa.feather.write_feather(pa.Table.from_pylist(ROWS), str(path)),
}


def rows_of(address: str | Path, use: str = "train") -> list[RawRow]:
    files = find(str(address), use)
    assert isinstance(files, list)
    return [row for file in files for row in read_rows(file)]


@pytest.mark.parametrize("name", WRITERS)
def test_rows_come_out_as_they_went_in(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    found = rows_of(tmp_path / name)
    assert [row.value for row in found] == ROWS
    first = found[0].number
    assert [row.number for row in found] == list(range(first, first + len(ROWS)))


def test_a_json_element_that_is_longer_than_a_chunk_is_whole(tmp_path: Path) -> None:
    rows = [{"prompt": "é" * CHUNK, "n": 1}, {"prompt": '[{]}"', "n": [1, {"a": None}]}]
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    assert [row.value for row in rows_of(tmp_path / "a.json")] == rows


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": ', "not JSON"),
        (b'["prompt"]', "a JSON list, not an object of columns"),
        (b'"text"', "a JSON str"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
        (b"[" * 100_000, "not JSON"),
        (b'{"prompt": "3"},' * 10_000, "not JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_broken_and_the_others_are_read(line: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "1"}\n\n' + line + b'\n{"prompt": "2"}')
    first, broken, last = rows_of(tmp_path / "a.jsonl")
    assert (first, last) == (RawRow(1, {"prompt": "1"}), RawRow(4, {"prompt": "2"}))
    assert broken.number == 3
    assert isinstance(broken.value, Broken)
    assert broken.value.reason.startswith(reason)


def test_a_line_that_is_cut_off_is_no_object_over_several_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{\n{"prompt": "1"}\n')
    broken, row = rows_of(tmp_path / "a.jsonl")
    assert isinstance(broken.value, Broken)
    assert row == RawRow(2, {"prompt": "1"})


def test_what_json_does_not_allow_and_python_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1", "score": NaN, "most": Infinity}\n')
    (row,) = rows_of(tmp_path / "a.jsonl")
    assert str(row.value["score"]) == "nan"  # type: ignore[index]


ROW = {"prompt": "1+1=", "answer": 2}
CHAT = {"messages": [{"role": "user", "content": "1+1="}]}


@pytest.mark.parametrize(
    ("whole", "rows"),
    [
        ({"version": 1, "data": [ROW, ROW]}, [ROW, ROW]),
        ({"data": [ROW]}, [ROW]),
        ({"a": ROW, "b": ROW}, [ROW, ROW]),
        ({"prompt": ["1+1=", "2+2="], "answer": [2, 4]}, [ROW, {"prompt": "2+2=", "answer": 4}]),
        ({"prompt": ["1+1="]}, [{"prompt": "1+1="}]),
        (ROW, [ROW]),
        (CHAT, [CHAT]),
        ({**CHAT, "tools": [{"type": "function"}]}, [{**CHAT, "tools": [{"type": "function"}]}]),
    ],
    ids=str,
)
@pytest.mark.parametrize("indent", [None, 2])
def test_one_json_object_holds_rows_in_the_forms_that_people_have(
    whole: dict[str, Any], rows: list[Any], indent: int | None, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(whole, indent=indent))
    assert [row.value for row in rows_of(tmp_path / "a.json")] == rows


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_a_csv_file_is_cut_by_what_its_header_has_most_of(delimiter: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'prompt{delimiter}answer\n"1, 2{delimiter} 3"{delimiter}6\n')
    (row,) = rows_of(tmp_path / "a.csv")
    assert row.value == {"prompt": f"1, 2{delimiter} 3", "answer": "6"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "prompt,answer\n1,2\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("a.jsonl", LINES.encode("utf-16"), "is UTF-16"),
        ("a.json", json.dumps(ROWS).encode("utf-16"), "is UTF-16"),
        ("a.jsonl", gzip.compress(LINES.encode()), r"is packed by gzip; end its name with .gz"),
        ("a.jsonl.gz", gzip.compress(gzip.compress(LINES.encode())), "is packed by gzip"),
        ("a.csv", "prompt,answer\n1,2\n".encode("utf-16-le"), "is UTF-16 without a mark"),
        ("a.jsonl", "{}".encode("utf-16-be"), "is UTF-16 without a mark"),
        ("a.jsonl", lzma.compress(LINES.encode()), "is packed by xz; end its name with .xz"),
        ("a.jsonl", b"<!DOCTYPE html><html>", "is a web page; download the file"),
        ("a.parquet", b"<html>", "is a web page"),
        ("a.csv", b"PK\x03\x04", "is a zip archive or a spreadsheet; unpack it"),
        ("a.jsonl", b"PAR1", "is Parquet"),
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n", "git lfs pull"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_something_else_is_refused_with_the_way_out(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name}: it .*{words}"):
        rows_of(tmp_path / name)


def test_what_follows_a_list_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[\n{"prompt": "1"}]' + " " * CHUNK + '[{"prompt": "2"}]')
    with pytest.raises(ConfigError, match="is behind the end of its list; write one list, or a row on each line"):
        rows_of(tmp_path / "a.json")
    (tmp_path / "b.jsonl").write_text('[{"prompt": "1"}]\n[{"prompt": "2"}]\n')
    assert [row.value for row in rows_of(tmp_path / "b.jsonl")] == [Broken("a JSON list, not an object of columns")] * 2


def test_an_object_with_the_rows_of_several_splits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"train": [ROW], "test": [ROW]}))
    with pytest.raises(ConfigError, match=r"holds the rows of train, test; save each in a file of its own"):
        rows_of(tmp_path / "a.json")


NOT_UTF_8 = pa.Array.from_buffers(pa.string(), 2, pa.array([b"1\xff", b"2"], pa.binary()).buffers())


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([1, None], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001", None]),
        (pa.array([1, 2], pa.timestamp("s", "Mars/Olympus")), ["1970-01-01 00:00:01.000", "1970-01-01 00:00:02.000"]),
        (pa.array([1, 2], pa.duration("ns")), ["1 ns", "2 ns"]),
        (pa.array([1, 2000], pa.time64("ns")), ["00:00:00.000000001", datetime.time(0, 0, 0, 2)]),
        (pa.array([10**7, 0], pa.date32()), ["29349-01-26", datetime.date(1970, 1, 1)]),
        (NOT_UTF_8, ["1\udcff", "2"]),
        (pa.array([[1], [2000]], pa.list_(pa.timestamp("ns"))), [None, [datetime.datetime(1970, 1, 1, 0, 0, 0, 2)]]),
    ],
    ids=lambda one: str(getattr(one, "type", "")),
)
def test_values_that_python_does_not_know_are_told_as_text_and_the_others_are_as_they_were(
    column: pa.Array, values: list[Any], tmp_path: Path
) -> None:
    pa.parquet.write_table(pa.table({"prompt": ["1+1=", "2+2="], "value": column}), tmp_path / "a.parquet")
    assert [row.value for row in rows_of(tmp_path / "a.parquet")] == [
        {"prompt": prompt, "value": value} for prompt, value in zip(["1+1=", "2+2="], values, strict=True)
    ]


def test_a_csv_file_says_itself_how_it_is_cut_and_commas_in_quotes_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffsep=|\nprompt|answer;;\n1+1=|2\n", "utf-8")
    (tmp_path / "b.csv").write_text('"prompt, or text, or so";answer\n1+1=;2\n')
    assert [row.value for row in rows_of(tmp_path / "*.csv")] == [
        {"prompt": "1+1=", "answer;;": "2"},
        {"prompt, or text, or so": "1+1=", "answer": "2"},
    ]


def twice(path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["q"]), pa.array(["a"]), pa.array(["b"])], names=["prompt", "answer", "answer"]
    )
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    elif path.suffix == ".csv":
        path.write_text("prompt,answer,answer\nq,a,b\n")
    else:
        write_arrow(table, path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "file.arrow", "stream.arrow"])
def test_a_table_with_two_columns_of_one_name_is_refused(name: str, tmp_path: Path) -> None:
    twice(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name}: it has two columns called 'answer'; rename one"):
        rows_of(tmp_path / name)


def test_a_map_of_arrow_is_a_record(tmp_path: Path) -> None:
    said = [("role", "user"), ("content", "1+1=")]
    table = pa.table({"prompt": pa.array([[said]], pa.list_(pa.map_(pa.string(), pa.string())))})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet")[0].value == {"prompt": [dict(said)]}


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
def test_what_a_table_says_is_json_is_what_it_says(name: str, tmp_path: Path) -> None:
    """`datasets` keeps columns so whose rows have different types."""
    texts = ['{"k":1}', '["1", null]', '"one"', "7", "null", None, "no json"]
    values = pa.array(texts, pa.json_())
    record = pa.StructArray.from_arrays([values, pa.array(["rule"] * len(texts))], ["ground_truth", "style"])
    calls = pa.array([[{"calls": text}] for text in texts], pa.list_(pa.struct([("calls", pa.string())])))
    kind = pa.list_(pa.struct([("calls", pa.json_())]))
    table = pa.table({"answer": values, "reward_model": record, "prompt": calls.cast(kind)})
    if name == "a.parquet":
        pa.parquet.write_table(table, tmp_path / name)
    else:
        write_arrow(table, tmp_path / name)
    found = [row.value for row in rows_of(tmp_path / name)]
    expected = [{"k": 1}, ["1", None], "one", 7, None, None, "no json"]
    assert [row["answer"] for row in found] == expected
    assert [row["reward_model"] for row in found] == [{"ground_truth": one, "style": "rule"} for one in expected]
    assert [row["prompt"] for row in found] == [[{"calls": one}] for one in expected]


def test_json_in_maps_and_of_records_that_are_missing_is_read(tmp_path: Path) -> None:
    by_name = pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], pa.array(["[1]", "{}"], pa.json_()))
    record = pa.array([None, {"g": "1"}], pa.struct([("g", pa.string())])).cast(pa.struct([("g", pa.json_())]))
    pa.parquet.write_table(pa.table({"record": record}), tmp_path / "a.parquet")
    assert [row.value for row in rows_of(tmp_path / "a.parquet")] == [{"record": None}, {"record": {"g": 1}}]
    write_arrow(pa.table({"extra_info": by_name}), tmp_path / "stream.arrow")
    found = [row.value for row in rows_of(tmp_path / "stream.arrow")]
    assert found == [{"extra_info": {"a": [1]}}, {"extra_info": {"b": {}}}]


@pytest.mark.parametrize("address", ["data", "data/*/part.jsonl", "data/**/*.jsonl"])
def test_folders_named_after_a_column_and_a_value_give_their_rows_that_column(address: str, tmp_path: Path) -> None:
    for level, row in (("1", {"prompt": "1+1="}), ("2%20b", {"prompt": "2+2=", "level": 3})):
        (tmp_path / "run=7" / "data" / f"level={level}").mkdir(parents=True)
        (tmp_path / "run=7" / "data" / f"level={level}" / "part.jsonl").write_text(json.dumps(row))
    (tmp_path / "run=7" / "data" / "_SUCCESS").touch()
    found = [row.value for row in rows_of(tmp_path / "run=7" / address)]
    assert found == [{"level": "1", "prompt": "1+1="}, {"level": 3, "prompt": "2+2="}]
    alone = tmp_path / "run=7" / "data" / "level=2%20b" / "part.jsonl"
    alone.write_text('{"prompt": "2+2="}')
    assert rows_of(tmp_path / "run=7" / address)[1].value == {"level": "2 b", "prompt": "2+2="}
    assert rows_of(alone)[0].value == {"prompt": "2+2="}


def test_a_csv_row_with_too_many_fields_is_broken_and_an_empty_field_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,answer\n"a, b\nc",\nx,1,2,3\ny\n')
    first, broken, short = rows_of(tmp_path / "a.csv")
    assert first.value == {"prompt": "a, b\nc", "answer": None}
    assert broken.value == Broken("2 fields more than the header names")
    assert short.value == {"prompt": "y", "answer": None}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"no"),
        ("a.arrow", b"no"),
        ("a.jsonl.gz", b"no"),
        ("a.jsonl.xz", b"no"),
        ("a.jsonl.xz", lzma.compress(LINES.encode())[:-20]),
    ],
)
def test_a_file_that_is_none_of_its_format_is_refused_by_its_name(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name}: it cannot be read as"):
        rows_of(tmp_path / name)


def test_json_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deep to be rows"):
        rows_of(tmp_path / "a.json")


def test_a_json_list_that_breaks_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"prompt": "1"}, {"prom')
    with pytest.raises(ConfigError, match="not JSON to its end"):
        rows_of(tmp_path / "a.json")
