"""The rules of `[sandbox]`. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.known import CODE_REWARD, CREDITS, PYTHON_TOOL
from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.config.toml_text import quoted

_LEAST_BYTES = 64 * 2**20
"""A Python that has done nothing takes 20 MB of address space, and its threads more."""
_LEAST_PROCESSES = 2
_MARGIN_S = 1.0


def runs_programs(config: Config) -> bool:
    """Whether anything of a run needs the sandbox."""
    return CODE_REWARD in config.reward.rule.functions or PYTHON_TOOL in config.environment.tools


def _keys_of_none(config: Config) -> Iterator[Problem]:
    """What is said of a sandbox that nothing runs in would do nothing."""
    if config.sandbox != SandboxConfig() and not runs_programs(config):
        what = (
            f"nothing runs in it: only the reward `{CODE_REWARD}` and the tool `{PYTHON_TOOL}` do; leave the table out"
        )
        yield Problem(key="sandbox", what=what, involves=("reward.function", "environment.tools"))


def _options(config: Config) -> Iterator[Problem]:
    given = (config.reward.options or {}).get(CODE_REWARD, {})
    credit, most = given.get("credit", CREDITS[0]), given.get("most_tests", 1)
    if credit not in CREDITS:
        what, allowed = f"no such credit of `{CODE_REWARD}`", ", ".join(map(quoted, CREDITS))
        yield Problem(key="reward.options", what=what, given=quoted(credit), allowed=allowed)
    if not isinstance(most, int) or most < 1:
        what = f"most_tests of `{CODE_REWARD}` is a number of tests"
        yield Problem(key="reward.options", what=what, given=quoted(most), allowed="at least 1")


def _remote(config: Config) -> Iterator[Problem]:
    sandbox = config.sandbox
    if sandbox.level == "remote" and not (sandbox.url or "").startswith(("http://", "https://")):
        what = "no server: set it to http://HOST:PORT"
        given = quoted(sandbox.url) if sandbox.url else ""
        yield Problem(key="sandbox.url", what=what, given=given, involves=("sandbox.level",))
    for name, value in (("url", sandbox.url), ("python", sandbox.python)):
        if value is not None and (sandbox.level == "remote") != (name == "url"):
            what = 'only of `level = "remote"`' if name == "url" else "a remote sandbox has a Python of its own"
            yield Problem(key=f"sandbox.{name}", what=what, given=quoted(value), involves=("sandbox.level",))


def _room(config: Config) -> Iterator[Problem]:
    sandbox = config.sandbox
    for name, value, least, what in (
        ("memory_bytes", sandbox.memory_bytes, _LEAST_BYTES, "a Python does not start in so little; set more"),
        ("processes", sandbox.processes, _LEAST_PROCESSES, "a program and what starts it are two; set more"),
    ):
        if value < least:
            yield Problem(key=f"sandbox.{name}", what=what, given=str(value), allowed=f"at least {least}")


def _time(config: Config) -> Iterator[Problem]:
    """Who waits for a program waits longer than the program may take."""
    needed = config.sandbox.time_s + _MARGIN_S
    waits = []
    if CODE_REWARD in config.reward.rule.functions:
        waits.append(("reward.timeout_s", config.reward.timeout_s, "a batch of programs"))
    if PYTHON_TOOL in config.environment.tools:
        waits.append(("environment.step_timeout_s", config.environment.step_timeout_s, "a program"))
    for key, value, who in waits:
        if value < needed:
            what = f"{who} may take more: sandbox.time_s and {_MARGIN_S:g} s; set at least {needed:g}"
            yield Problem(key=key, what=what, given=f"{value:g}", involves=("sandbox.time_s",))


SANDBOX_RULES = (_keys_of_none, _options, _remote, _room, _time)
