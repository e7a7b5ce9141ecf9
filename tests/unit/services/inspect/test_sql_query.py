"""`streamrl sql`: one query, over nothing but the run's tables, that writes nothing; its answer in three forms."""

import json
import os
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.repository import ROOT
from support.runs.looked_run import finished_run
from support.runs.small_run import GROUP_SIZE, GROUPS, STEPS

from streamrl.errors import ConfigError
from streamrl.services.cli.main import run_app
from streamrl.services.inspect.sql import Answer, query_run, query_tables
from streamrl.services.inspect.sql_output import as_csv, as_json, as_text
from streamrl.services.inspect.sql_tables import TABLES
from streamrl.services.run.folder import RunFolder

DOCS = ROOT / "docs" / "guides" / "sql.md"
ROWS = GROUPS * GROUP_SIZE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished_run(tmp_path_factory.mktemp("queried"))


def ask(query: str, table: pa.Table | None = None) -> Answer:
    return query_tables(query, lambda: {"t": pa.table({"a": [1, 2, 3]}) if table is None else table})


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('FOLDER/secret')",
        "select * from read_csv('FOLDER/secret')",
        "select * from 'FOLDER/secret.csv'",
        "select * from glob('FOLDER/*')",
        "select * from read_blob('/proc/self/environ')",
        "select * from 'https://example.com/a.parquet'",
        # A variable of the function that asks DuckDB.
        'select * from "table"',
        "select getenv('HOME')",
        "explain analyze copy t to 'FOLDER/out.csv'",
    ],
)
def test_a_query_reads_no_file_no_variable_and_nothing_from_the_network(query: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret.csv").write_text("secret\n1\n")
    with pytest.raises(ConfigError, match="the query was refused"):
        ask(query.replace("FOLDER", str(tmp_path)))
    assert sorted(os.listdir(tmp_path)) == ["secret", "secret.csv"]


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("copy t to 'FOLDER/out.csv'", "COPY"),
        ("copy (select 1) to 'FOLDER/out.parquet'", "COPY"),
        ("export database 'FOLDER/out'", "EXPORT"),
        ("attach 'FOLDER/out.db'", "ATTACH"),
        ("create table x as select * from t", "CREATE"),
        ("insert into t values (4)", "INSERT"),
        ("delete from t", "DELETE"),
        ("drop view t", "DROP"),
        ("set enable_external_access = true", "SET"),
        ("install httpfs", "LOAD"),
        ("pragma database_list", "PRAGMA"),
    ],
)
def test_a_statement_that_is_no_query_is_refused_by_its_kind(query: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"may only read, and this is {kind}"):
        ask(query.replace("FOLDER", str(tmp_path)))
    assert os.listdir(tmp_path) == []


def test_the_settings_hold_and_are_locked() -> None:
    expected = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",
        "python_enable_replacements": "false",
        "temp_directory": "",
    }
    found = dict(ask("select name, value from duckdb_settings()").rows)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("query", ["", "-- nothing", "select 1; select 2", "select 1; drop view t"])
def test_exactly_one_query_is_taken(query: str) -> None:
    with pytest.raises(ConfigError, match=r"give one query, not [02]; tables are completions, scores"):
        ask(query)


@pytest.mark.parametrize(
    ("query", "says"),
    [("selec 1", "syntax error"), ("select b from t", "Candidate bindings"), ("select * from u", "u does not exist")],
)
def test_a_mistake_in_a_query_is_what_duckdb_says_of_it(query: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ask(query)


def test_without_duckdb_the_message_says_what_to_install(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert run_app(["sql", str(run.path), "select 1"]) == 2
    assert "pip install 'streamrl[sql]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from rollouts",
        'SELECT COUNT(*) FROM "ROLLOUTS"',
        "from rollouts select count(*)",
        "with r as (from rollouts) select count(*) from r",
        "select (select count(*) from rollouts)",
        "select count(*) from (select * from steps) right join rollouts using (step)",
        "select any_value(count) from (summarize rollouts)",
        "select count(*) from completions",
        "select count(*) from scores where accepted",
        "select count(*) from ledger where kind = 'scored'",
    ],
)
def test_a_table_has_its_rows_however_it_is_named(query: str, run: RunFolder) -> None:
    assert query_run(run, query, pytest.fail).rows == [(ROWS,)]


def test_the_versions_of_a_rollout_come_apart_with_their_tokens() -> None:
    """The query of docs/guides/sql.md over a rollout of two versions: 2 prompt tokens, 1 of version 0.3, 3 of 1.4."""
    (query,) = re.findall(r"two versions\?.*?```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
    spans = [{"start": 2, "incarnation": 0, "step": 3}, {"start": 3, "incarnation": 1, "step": 4}]
    row = {"rollout_id": "g/0", "group_number": 0, "sample_index": 0, "token_ids": list(range(6)), "reward": 0.5}
    rows = [{**row, "version_spans": spans, "step": 5}, {**row, "version_spans": spans[:1], "step": 5}]
    answer = query_tables(query, lambda: {"rollouts": pa.Table.from_pylist(rows)})
    assert answer.rows == [("g/0", ["0.3", "1.4"], [1, 3], 0.5, 5)]


def test_the_tables_can_be_listed_and_described(run: RunFolder) -> None:
    assert [name for (name,) in query_run(run, "show tables", pytest.fail).rows] == sorted(TABLES)
    described = query_run(run, "describe rollouts", pytest.fail).rows
    assert [row[0] for row in described][:4] == ["prompt_id", "rollout_id", "group_number", "sample_index"]
    assert dict(row[:2] for row in described)["token_ids"] == "INTEGER[]"


def test_a_pivot_is_a_query_too(run: RunFolder) -> None:
    answer = query_run(run, "pivot rollouts on sample_index using count(*) group by step", pytest.fail)
    assert sorted(answer.rows) == [(step, 2, 2) for step in range(1, STEPS + 1)]


ANSWER = Answer(
    ["number", "x", "text", "list", "map"],
    [
        (1, 0.123456789, "a\nb\x1b[31m", [1, 2], {"a": float("nan")}),
        (2**70, None, "c" * 100, None, {}),
        (Decimal("1.50"), float("inf"), "\u00e9", [], None),
    ],
)


def test_text_is_for_eyes_and_no_value_moves_the_cursor() -> None:
    lines = as_text(ANSWER).splitlines()
    assert len(lines) == 6
    assert lines[0].split() == ANSWER.names
    assert lines[2].split() == ["1", "0.123457", "a?b?[31m", "[1,", "2]", '{"a":', "null}"]
    assert "c" * 45 + "..." in lines[3]
    assert "c" * 46 not in lines[3]
    assert lines[-1] == "(3 rows)"
    assert as_text(Answer(["a"], [])).splitlines() == ["a", "-", "(0 rows)"]


def test_numbers_stand_to_the_right_and_texts_to_the_left() -> None:
    lines = as_text(Answer(["n", "word"], [(1, "a"), (100, "bb")])).splitlines()
    assert lines == ["  n  word", "---  ----", "  1  a", "100  bb", "(2 rows)"]


def test_json_and_csv_are_whole_and_know_no_nan() -> None:
    rows: list[dict[str, Any]] = json.loads(as_json(ANSWER), parse_constant=pytest.fail)
    assert rows[0] == {"number": 1, "x": 0.123456789, "text": "a\nb\x1b[31m", "list": [1, 2], "map": {"a": None}}
    assert (rows[1]["number"], rows[1]["text"]) == (2**70, "c" * 100)
    assert (rows[2]["number"], rows[2]["x"]) == ("1.50", None)
    lines = as_csv(Answer(["a", "b"], [(1, None), ("x,y", [1, None]), (float("nan"), b"\x00\xff")])).splitlines()
    assert lines == ["a,b", "1,", '"x,y","[1, null]"', ",00ff"]


def test_the_command_takes_a_run_a_file_and_a_form(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.path.parents[1])
    file = tmp_path / "q.sql"
    file.write_text("-- how many\nselect count(*) as n from rollouts")
    for arguments in (
        ["sql", "select count(*) as n from rollouts", "--csv"],
        ["sql", run.name, "select count(*) as n from rollouts", "--csv"],
        ["sql", "--csv", "--file", str(file)],
        ["sql", "--csv", str(run.path), "--file", str(file)],
    ):
        assert run_app(arguments) == 0
        assert capsys.readouterr().out == f"n\n{ROWS}\n"
    assert run_app(["sql", "select 1 as a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"a": 1}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give one query"),
        (["a", "b", "c"], "give one query"),
        (["select 1", "--file", "/none.sql"], "cannot read the query in /none.sql"),
        (["/none", "select 1"], "no run folder '/none'"),
        (["RUN", "select nothing from rollouts"], 'column "nothing" not found'),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: list[str], says: str, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["sql", *(str(run.path) if word == "RUN" else word for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert (out, says in err, err.count("streamrl: ")) == ("", True, 1)
