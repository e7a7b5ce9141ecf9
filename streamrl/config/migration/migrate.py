"""From the text of another system's files to the text of a configuration, and the list of what is not in it. Pure.

Guarantees: each key that is written has its origin beside it; each setting that is not is in the list, by name, with
its line and the reason. What the configuration must have and the other system does not say (room in the queue, for
instance) is made to fit. What a check would still refuse is told.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from streamrl.config.estimates import sizes
from streamrl.config.loading.convert import convert
from streamrl.config.loading.toml_lines import SyntaxProblem
from streamrl.config.migration import prime_table, prime_units, trl_table, trl_units, verl_table, verl_units
from streamrl.config.migration.python_calls import Script
from streamrl.config.migration.readers import shell_settings, toml_settings, yaml_settings
from streamrl.config.migration.table import Findings, LeftOut, Setting, Source, Written, apply, defaults_of
from streamrl.config.problems import ConfigProblems, Problem
from streamrl.config.rules.run import check_rules
from streamrl.config.schema import fields
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import toml_value

System = Literal["verl", "trl", "prime"]
_PARTS = (prime_table.TR, prime_table.OR, prime_table.INF)
_GIB = 2**30


class File(msgspec.Struct, frozen=True):
    """name: as the user gave it."""

    name: str
    text: str


class Migrated(msgspec.Struct, frozen=True):
    """written: in the order of the schema. left: in the order of the files. notes: what is to be done by hand.
    problems: what `streamrl check` would still say of the configuration by itself."""

    system: System
    text: str
    written: tuple[Written, ...]
    left: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def system_of(name: str, text: str) -> System | None:
    """Whose file it is, by its name's ending; None for any other."""
    ending = name.rpartition(".")[2].lower()
    return {"yaml": "verl", "yml": "verl", "sh": "verl", "bash": "verl", "py": "trl", "toml": "prime"}.get(ending)  # type: ignore[return-value]


def migrate(
    system: System,
    files: Sequence[File],
    *,
    rows: int | None = None,
    devices: int = 1,
    is_folder: Callable[[str], bool] = lambda _: False,
) -> Migrated:
    """The configuration that files of another system come to. rows: of the training data, by which epochs become steps.
    devices: processes that a TRL script is started with. is_folder: whether a model's name is a folder here.

    Raises ConfigProblems for a file that cannot be read, or says nothing that is known.
    """
    found = Findings()
    try:
        _CONVERSIONS[system](files, found, rows, devices, is_folder)
    except SyntaxProblem as error:
        file = files[-1].name if len(files) == 1 else ", ".join(one.name for one in files)
        raise ConfigProblems((Problem(key="", what=error.what, file=file, line=error.line),)) from None
    config = _valid(found)
    _fit(config, found)
    config, _ = convert(found.tree())
    written = tuple(sorted(found.written.values(), key=lambda one: _rank(one.key)))
    problems = tuple(f"{one.key}: {one.what}" for one in check_rules(config))
    order = {file.name: place for place, file in enumerate(files)}
    left = tuple(sorted(found.left, key=lambda one: (order.get(one.file, 0), one.line == 0, one.line)))
    text = _text(system, files, written, found.notes)
    return Migrated(system, text, written, left, tuple(found.notes), problems)


def _verl(
    files: Sequence[File], found: Findings, rows: int | None, devices: int, is_folder: Callable[[str], bool]
) -> None:
    settings: dict[str, Setting] = {}
    for file in files:
        read = yaml_settings if file.name.endswith((".yaml", ".yml")) else shell_settings
        settings |= {setting.name: setting for setting in read(file.text, file.name)}
    known = [name for name in settings if name.startswith(("actor_rollout_ref.", "data.", "algorithm.", "trainer."))]
    _require(known, files, "no key of verl (`data.`, `actor_rollout_ref.`, `algorithm.`, `trainer.`)")
    source = Source(list(settings.values()), verl_units.DEFAULTS, "verl")
    apply(verl_table.TABLE, source, found)
    defaults_of(verl_table.TABLE, source, found, verl_units.WRITTEN_DEFAULTS)
    verl_units.convert_units(source, found, rows=rows, is_folder=is_folder)


def _trl(
    files: Sequence[File], found: Findings, rows: int | None, devices: int, is_folder: Callable[[str], bool]
) -> None:
    if len(files) > 1:
        raise SyntaxProblem("one script is converted at a time", 0)
    script = Script(files[0].text, files[0].name, trl_units.CALLS)
    settings = script.settings()
    _require(settings, files, "no call of GRPOConfig, LoraConfig or GRPOTrainer")
    read = [one for one in settings if not one.name.startswith(f"{trl_table.T}.")]
    told = [one for one in settings if one.name.startswith(f"{trl_table.T}.") and one.name not in _READ_AS_CODE]
    source = Source([*read, *told], trl_units.DEFAULTS, "TRL")
    apply(trl_table.TABLE, source, found)
    defaults_of(trl_table.TABLE, source, found, trl_units.WRITTEN_DEFAULTS)
    trl_units.convert_units(source, script, found, rows=rows, devices=devices, is_folder=is_folder)


_READ_AS_CODE = tuple(
    f"{trl_table.T}.{name}"
    for name in ("model", "reward_funcs", "train_dataset", "eval_dataset", "args", "peft_config")
)


def _prime(
    files: Sequence[File], found: Findings, rows: int | None, devices: int, is_folder: Callable[[str], bool]
) -> None:
    settings: dict[str, Setting] = {}
    for file in files:
        own = toml_settings(file.text, file.name)
        part = _part(own)
        settings |= {one.name: one for one in (_within(part, setting) for setting in own)}
    known = [
        name for name in settings if name.startswith((*_PARTS, "model.name", "max_steps", "seq_len", "deployment."))
    ]
    _require(known, files, "no key of prime-rl (`trainer`, `orchestrator`, `inference`, `model`, `max_steps`)")
    source = Source(list(settings.values()), prime_units.DEFAULTS, "prime-rl")
    apply(prime_table.TABLE, source, found)
    defaults_of(prime_table.TABLE, source, found, prime_units.WRITTEN_DEFAULTS)
    prime_units.convert_units(source, found, is_folder=is_folder)


def _part(settings: Sequence[Setting]) -> str:
    """The part that a file is of, where each has its own; "" for a file of all."""
    heads = {setting.name.partition(".")[0] for setting in settings}
    if heads & {*_PARTS, "deployment"}:
        return ""
    if heads & {"optim", "scheduler", "loss"}:
        return prime_table.TR
    if heads & {"env", "batch_size", "rollouts_per_example", "sampling", "train", "group_size"}:
        return prime_table.OR
    return prime_table.INF if heads & {"server", "parallel"} else ""


def _within(part: str, setting: Setting) -> Setting:
    return msgspec.structs.replace(setting, name=f"{part}.{setting.name}") if part else setting


_CONVERSIONS: dict[System, Callable[..., None]] = {"verl": _verl, "trl": _trl, "prime": _prime}


def _require(known: Sequence[object], files: Sequence[File], what: str) -> None:
    if not known:
        raise ConfigProblems(tuple(Problem(key="", what=f"{what} is in it", file=file.name) for file in files))


def _valid(found: Findings) -> Config:
    """The configuration. A value that no key of ours can have is left out instead of written."""
    config, problems = convert(found.tree())
    for problem in problems:
        written = next((one for key, one in found.written.items() if _hangs_on(problem.key, key)), None)
        if written is not None:
            del found.written[written.key]
            setting = Setting(written.origin, written.value)
            found.leave(setting, f"no value of {written.key}: {problem.allowed or problem.what}")
    return config if not problems else convert(found.tree())[0]


def _hangs_on(problem: str, key: str) -> bool:
    return problem == key or problem.startswith(f"{key}.")


def _fit(config: Config, found: Findings) -> None:
    """Make room for the rows that the configuration has."""
    prompt = config.data.max_prompt_tokens or 1
    row = sizes.longest_row(config, prompt)
    if config.learner.micro_batch_tokens < row:
        found.write("learner.micro_batch_tokens", row, "a row must fit a pack")
    needed = 2 * sizes.worst_row_bytes(config, prompt)
    if config.queue.segment_bytes < needed:
        found.write("queue.segment_bytes", _rounded(needed), "a segment must hold the longest row")
    waiting = (config.learner.max_staleness + 2) * sizes.step_bytes(config, prompt)
    if config.queue.byte_budget < waiting:
        found.write("queue.byte_budget", _rounded(waiting), "room for max_staleness + 2 steps of rows at full length")
    config, _ = convert(found.tree())
    writers = 2 * sizes.log_writers(config) + sizes.JOURNAL_FILES * config.rollout.most_replicas
    log = config.queue.byte_budget + writers * config.queue.segment_bytes
    if config.queue.disk_budget < log:
        found.write("queue.disk_budget", _rounded(log), "room for the rows that no resume may lose")
    logs = 10 * sizes.log_parts(config) * sizes.LEAST_LOG_BYTES
    if config.observe.log_bytes < logs:
        found.write("observe.log_bytes", _rounded(logs), "room for the logs of all parts")


def _rounded(size: int) -> int:
    return -(-size // _GIB) * _GIB


def _rank(key: str) -> int:
    names = [leaf.name for leaf in fields.leaves()]
    return names.index(key) if key in names else len(names)


def _text(system: System, files: Sequence[File], written: Sequence[Written], notes: Sequence[str]) -> str:
    return "\n".join([*_head(system, files, notes), "", *_tables(written)]) + "\n"


def _head(system: System, files: Sequence[File], notes: Sequence[str]) -> Iterator[str]:
    yield f"# From {_comment(', '.join(file.name for file in files))} of {_TITLES[system]}."
    for note in notes:
        yield f"# * {_comment(note)}"


_TITLES: dict[System, str] = {"verl": "verl", "trl": "TRL", "prime": "prime-rl"}


def _tables(written: Sequence[Written]) -> Iterator[str]:
    """Keys without a table first, then table by table."""
    tables: dict[str, list[Written]] = {}
    for one in written:
        tables.setdefault(one.key.rpartition(".")[0], []).append(one)
    for table in sorted(tables, key=lambda name: name != ""):
        if table:
            yield f"\n[{table}]"
        for one in tables[table]:
            yield f"{one.key.rpartition('.')[2]} = {toml_value(one.value)}  # {_comment(one.origin)}"


def _comment(text: str) -> str:
    """On one line, without what TOML forbids in a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
