"""Loading, laying on top, writing out and comparing configurations."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect
from support.repository import ROOT

from streamrl.config import Config, ConfigProblems, diff, dump, load, load_args
from streamrl.config.loading.convert import convert
from streamrl.config.loading.layers import merge
from streamrl.config.loading.toml_lines import parse_toml
from streamrl.config.schema import fields
from streamrl.config.toml_text import toml_value

MODEL = 'model.preset = "tiny-qwen3"\n'


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Those that name a model to be downloaded are looked at with a small one: `tests/integration/test_recipes.py`.
@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*quickstart*.toml")), ids=lambda path: path.name)
def test_every_file_in_configs_loads(path):
    assert load(path).name == path.stem


def test_one_that_comes_with_streamrl_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("quickstart") == load(ROOT / "configs/quickstart.toml")
    (tmp_path / "quickstart").mkdir()
    assert load("quickstart") == load(ROOT / "configs/quickstart.toml"), "a folder is no configuration"
    (tmp_path / "quickstart").rmdir()
    write(tmp_path, MODEL + 'name = "mine"\n', "quickstart")
    assert load("quickstart").name == "mine"


@pytest.mark.parametrize(("given", "told"), [("quickstar", True), ("quickstar.toml", False), ("a/quickstart", False)])
def test_a_name_that_none_has_is_told_with_those_that_there_are(given, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigProblems, match="cannot read it: No such file or directory") as raised:
        load(given)
    assert ("; by name there are dapo-math, " in str(raised.value)) is told


def test_a_later_source_wins_and_tables_merge_key_by_key(tmp_path):
    first = write(tmp_path, MODEL + "[learner]\nsteps = 5\ngroups_per_step = 3\n")
    second = write(tmp_path, "[learner]\nsteps = 6\n[learner.optimizer]\nlr = 1e-4\n", "more.toml")
    config = load(first, second, overrides={"learner.optimizer.lr": "2e-4"})
    assert (config.learner.steps, config.learner.groups_per_step, config.learner.optimizer.lr) == (6, 3, 2e-4)


def test_lists_are_replaced_whole():
    assert merge({"a": {"b": [1, 2], "c": 1}}, {"a": {"b": [3]}}) == {"a": {"b": [3], "c": 1}}


def test_merging_leaves_its_sources_alone():
    base: dict[str, Any] = {"a": {"b": 1}}
    merge(base, {"a": {"b": 2}})
    assert base == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("args", "key", "value"),
    [
        (["--learner.optimizer.lr", "1e-6"], "learner.optimizer.lr", 1e-6),
        (["--learner.optimizer.lr=1"], "learner.optimizer.lr", 1.0),
        (["--learner.max-staleness", "1"], "learner.max_staleness", 1),
        (["--rollout.deterministic", "False"], "rollout.deterministic", False),
        (["--rollout.scripted.logprob-bias", "-0.5"], "rollout.scripted.logprob_bias", -0.5),
        (["--rollout.update_mode", "drain"], "rollout.update_mode", "drain"),
        (["--rollout.update_mode", '"drain"'], "rollout.update_mode", "drain"),
        (["--name", "42"], "name", "42"),
        (["--name=2026-01-31"], "name", "2026-01-31"),
        (["--runs", "a=b"], "runs", "a=b"),
        (["--learner.optimizer.betas", "[0.8, 0.9]"], "learner.optimizer.betas", (0.8, 0.9)),
        (["--learner", "{steps = 7}"], "learner.steps", 7),
        (["--learner.steps", "7", "--learner", "{steps = 8}"], "learner.steps", 8),
        (["--learner.steps", "9", "--learner", "{steps = 8}", "--learner.steps=10"], "learner.steps", 10),
        (["--ray.num_cpus", "2", "--ray.num_cpus", "none"], "ray.num_cpus", None),
        (["--queue.byte_budget", "1_000_000_000"], "queue.byte_budget", 10**9),
    ],
)
def test_the_command_line_is_read_by_the_type_of_its_key(tmp_path, args, key, value):
    config = load_args(write(tmp_path, MODEL), args)
    assert dict(leaf_values(config))[key] == value


def test_overlays_and_overrides_may_come_in_any_order_and_overrides_win(tmp_path):
    first = write(tmp_path, MODEL)
    second = write(tmp_path, "seed = 1\nlearner.steps = 2\n", "more.toml")
    third = write(tmp_path, "learner.steps = 3\n", "last.toml")
    config = load_args(first, ["--seed", "9", "@", str(second), f"@{third}"])
    assert (config.seed, config.learner.steps) == (9, 3)


def test_the_word_none_sets_an_optional_key_back_to_absent(tmp_path):
    first = write(tmp_path, MODEL)
    second = write(tmp_path, 'model.preset = "none"\n', "more.toml")
    with pytest.raises(ConfigProblems, match=r"more\.toml:1: model: no model"):
        load(first, second)


def test_windows_line_ends_and_a_missing_last_newline_are_fine(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"seed = 3\r\n\r\n[model]\r\npreset = 'tiny-qwen3'")
    assert load(path).seed == 3
    path.write_bytes(b"seed = 3\r\n\r\n[model]\r\npresets = 'tiny-qwen3'")
    with pytest.raises(ConfigProblems, match=r"run\.toml:4: model\.presets: unknown key"):
        load(path)


def test_a_byte_order_mark_as_windows_editors_write_it_is_fine(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('seed = 3\n[model]\npreset = "tiny-qwen3"\n', encoding="utf-8-sig")
    assert load_args(str(path), []).seed == 3


def test_each_key_is_found_on_the_line_of_its_statement():
    text = '# a\na = 1\n\n[b]\nc = [\n 1,\n]\nd = {e = 2}\n"f.g" = """\n[x]\n"""\n'
    text += "[b.h.i]\nj = 1\n[b.h]\nk.l = 1\n"
    lines = parse_toml(text)[1]
    assert lines == {
        "a": 2,
        "b": 4,
        "b.c": 5,
        "b.d": 8,
        "b.d.e": 8,
        'b."f.g"': 9,
        "b.h": 14,
        "b.h.i": 12,
        "b.h.i.j": 13,
        "b.h.k": 15,
        "b.h.k.l": 15,
    }


def leaf_values(config: Config) -> list[tuple[str, Any]]:
    values = []
    for leaf in fields.leaves():
        value: Any = config
        for part in leaf.name.split("."):
            value = getattr(value, part)
        values.append((leaf.name, value))
    return values


def values_of(info: inspect.Type) -> st.SearchStrategy[Any]:
    """Values that a type of the schema allows."""
    if isinstance(info, inspect.LiteralType):
        return st.sampled_from(info.values)
    if isinstance(info, inspect.BoolType):
        return st.booleans()
    if isinstance(info, inspect.IntType):
        return st.integers(info.ge or 0, info.le or 2**62)
    if isinstance(info, inspect.FloatType):
        low = math.nextafter(info.gt, 1.0) if info.gt is not None else info.ge
        return st.floats(low, info.le, allow_nan=False, allow_infinity=False)
    if isinstance(info, inspect.TupleType):
        return st.tuples(*map(values_of, info.item_types))
    if isinstance(info, inspect.UnionType):
        return st.one_of(*map(values_of, info.types))
    if isinstance(info, inspect.StrType):
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda word: word != "none")
        return st.from_regex(r"\A[a-z][a-z._-]{0,20}\Z") if info.pattern else text
    return st.none()


def trees() -> st.SearchStrategy[dict[str, Any]]:
    """Trees of valid values for any subset of keys."""
    choices = {leaf.name: values_of(inspect.type_info(leaf.type)) for leaf in fields.leaves()}
    return st.fixed_dictionaries({}, optional=choices).map(nested)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        tree = merge(tree, {} if value is None else value)
    return tree


def without_none(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        key: without_none(value) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else value
        for key, value in tree.items()
        if value is not None
    }


@settings(max_examples=100, deadline=None)
@given(trees())
def test_what_is_dumped_is_read_back_equal(tree):
    config, problems = convert(without_none(tree))
    assert problems == []
    again, problems = convert(parse_toml(dump(config))[0])
    assert problems == []
    assert again == config


@settings(max_examples=50, deadline=None)
@given(trees(), trees())
def test_diff_names_exactly_the_keys_that_differ(first, second):
    one, two = convert(without_none(first))[0], convert(without_none(second))[0]
    pairs = zip(leaf_values(one), leaf_values(two), strict=True)
    assert diff(one, two) == [name for (name, a), (_, b) in pairs if a != b]


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_as_a_toml_string(text):
    assert parse_toml(f"x = {toml_value(text)}")[0] == {"x": text}


def test_a_dumped_quickstart_loads_as_the_same_configuration(tmp_path):
    config = load(ROOT / "configs" / "quickstart.toml")
    assert load(write(tmp_path, dump(config))) == config
    assert diff(config, config) == []


def test_a_key_that_is_taken_away_from_its_default_stays_so_in_the_dump(tmp_path):
    config = load_args(
        write(tmp_path, MODEL), ["--learner.algorithm.advantage", "gae", "--learner.critic.value_clip", "none"]
    )
    assert config.learner.critic.value_clip is None
    assert load(write(tmp_path, dump(config))) == config


def test_diff_is_in_schema_order(tmp_path):
    path = write(tmp_path, MODEL)
    changed = load_args(path, ["--observe.trace", "false", "--seed", "3", "--learner.optimizer.lr", "1"])
    assert diff(load(path), changed) == ["seed", "learner.optimizer.lr", "observe.trace"]
