"""What is wrong with a configuration, as data: where it stands, what was given, what is allowed, the way out.

A `Problem` knows nothing of files by itself: the checks name keys, and `sources` adds file and line. The two
errors carry all problems at once and print one line for each.
"""

from collections.abc import Iterable

from msgspec import Struct

from streamrl.errors import ConfigError, ResourceError

COMMAND_LINE = "command line"
MACHINE = "this machine"


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong.

    key: dotted key path, "" for a whole file. what: the sentence, with the way out. given: the value as TOML.
    allowed: the values that are. suggestion: the nearest valid key or value. involves: further keys on which
    the problem depends. file: as the user named it, or `COMMAND_LINE` or `MACHINE`. line: from 1; 0 where
    there is none.
    """

    key: str
    what: str
    given: str = ""
    allowed: str = ""
    suggestion: str = ""
    involves: tuple[str, ...] = ()
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        head = ": ".join(part for part in (where, self.key, self.what) if part)
        given = f" (given {self.given})" if self.given else ""
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        suggestion = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{head}{given}{allowed}{suggestion}"


def report(problems: Iterable[Problem], title: str) -> str:
    """One problem on its own line; several under a heading that counts them."""
    lines = [str(problem) for problem in problems]
    if len(lines) == 1:
        return lines[0]
    return "\n".join([f"{len(lines)} {title}:", *(f"  {line}" for line in lines)])


class ConfigProblems(ConfigError):
    """Everything that is wrong with a configuration, at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return report(self.problems, "problems in the configuration")


class ResourceProblems(ResourceError):
    """Everything that this machine has too little of, at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return report(self.problems, "things that this machine has too little of")
