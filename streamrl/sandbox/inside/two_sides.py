"""Tests on one side, the solution that they test on the other, each in a sandbox of its own.

The side of the tests holds what decides. It sees the solution through a socket over which values travel as data: a
solution that replaces `__eq__`, ends its process, patches `assert` or writes to every descriptor that it finds can give
wrong values, and cannot say that a test passed. What is no plain data stays on its side, and the tests get a `Remote`
that stands for it; a `Remote` is never equal to plain data.

Run as `main.py solution` beside solution.txt, or as `main.py tests` beside tests.json, a list of [name, source].
"""

import builtins
import importlib
import json
import socket
import sys
import traceback
import types
import unittest
from collections.abc import Callable, Collection, Iterator
from typing import Any

PEER = 3
"""Descriptor of the socket to the other side."""
MOST_TEXT = 500

_SCALARS = (bool, int, float, str, type(None))
_CONTAINERS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class Peer:
    """Calls and answers over the socket: a line of JSON each. A call may be answered by calls back, to any depth.

    answers: the actions that the other side may ask for."""

    def __init__(self, channel: socket.socket, answers: Collection[str]) -> None:
        self._lines = channel.makefile("r", encoding="utf-8", errors="surrogatepass")
        self._out = channel.makefile("w", encoding="utf-8", errors="surrogatepass")
        self._answers = answers
        self.kept: list[Any] = []
        """Objects of this side that the other side knows by their place."""
        self.exceptions: dict[int, type[BaseException]] = {}

    # ---- values

    def encoded(self, value: Any) -> Any:
        """Plain data as JSON, of subclasses the plain part; all else as a place."""
        kind = type(value)
        if kind in _SCALARS:
            return value
        if isinstance(value, Remote):
            return {"yours": value.place}
        if not _stays(value):
            for plain in (int, float, str):
                if isinstance(value, plain):
                    return plain(value)
            if isinstance(value, list):
                return [self.encoded(one) for one in value]
            if isinstance(value, dict):
                return {"dict": [[self.encoded(key), self.encoded(one)] for key, one in value.items()]}
            for name, base in _CONTAINERS.items():
                if isinstance(value, base):
                    return {name: [self.encoded(one) for one in value]}
            if isinstance(value, (bytes, bytearray)):
                return {"bytes": value.hex()}
            if isinstance(value, complex):
                return {"complex": [value.real, value.imag]}
        if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] in sys.stdlib_module_names:
            return {"module": value.__name__}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"exception": [self._place(value), value.__name__, _built_in(value)]}
        return {"mine": self._place(value)}

    def _place(self, value: Any) -> int:
        """The same object has one place, so that the other side knows it again."""
        for place, one in enumerate(self.kept):
            if one is value:
                return place
        self.kept.append(value)
        return len(self.kept) - 1

    def decoded(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decoded(one) for one in value]
        if not isinstance(value, dict):
            return value
        ((kind, given),) = value.items()
        if kind == "dict":
            return {self.decoded(key): self.decoded(one) for key, one in given}
        if kind in _CONTAINERS:
            return _CONTAINERS[kind]([self.decoded(one) for one in given])
        if kind == "bytes":
            return bytes.fromhex(given)
        if kind == "complex":
            return complex(*given)
        if kind == "yours":
            return self.kept[given]
        if kind == "module":
            if given.split(".")[0] not in sys.stdlib_module_names:
                raise ValueError(f"{given!r} is no module of the standard library")
            return importlib.import_module(given)
        if kind == "exception":
            place, name, base = given
            return self.exceptions.setdefault(place, type(name, (getattr(builtins, base),), {}))
        return Remote(self, given)

    # ---- calls

    def ask(self, action: str, *given: Any) -> Any:
        """What the other side answers. Raises what it raised, as an exception of this side."""
        mutable = [one for one in given if type(one) in (list, dict, set)]
        self._say(["ask", action, [self.encoded(one) for one in given]])
        while True:
            message = self._heard()
            if message[0] == "ask":
                self._answer(message[1], message[2])
                continue
            for one, after in zip(mutable, message[2], strict=True):
                _become(one, self.decoded(after))
            if message[0] == "raised":
                raise self._exception(message[1])
            return self.decoded(message[1])

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            message = self._heard()
            self._answer(message[1], message[2])

    def _answer(self, action: str, encoded: list[Any]) -> None:
        given = [self.decoded(one) for one in encoded]
        mutable = [one for one in given if type(one) in (list, dict, set)]
        try:
            if action not in self._answers:
                raise TypeError("what the tests pass to the solution can only be called")
            said = ["gave", self.encoded(ACTIONS[action](*given))]
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever the other side's code does
            said = ["raised", [self.encoded(type(error)), _text(error)]]
        self._say([*said, [self.encoded(one) for one in mutable]])

    def _exception(self, given: Any) -> BaseException:
        kind, text = self.decoded(given[0]), given[1]
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            return RuntimeError(f"the solution raised {text}")
        try:
            return kind(text)
        except Exception:  # noqa: BLE001 - UnicodeError and others want more than a text
            return RuntimeError(f"the solution raised {kind.__name__}: {text}")

    def _say(self, message: list[Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def _heard(self) -> Any:
        line = self._lines.readline()
        if not line:
            raise EOFError("the solution's process ended")
        return json.loads(line)


def _stays(value: Any) -> bool:
    """Members of an enumeration and named tuples are more than the data in them."""
    return hasattr(type(value), "_member_map_") or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _built_in(kind: type[BaseException]) -> str:
    """Name of the nearest exception of Python's own."""
    names = [str(one.__name__) for one in kind.__mro__ if getattr(builtins, one.__name__, None) is one]
    return names[0]


def _become(container: Any, after: Any) -> None:
    """What the other side did to an argument is done to the caller's."""
    if type(container) is not type(after) or container == after:
        return
    if isinstance(container, list):
        container[:] = after
    else:
        container.clear()
        container.update(after)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MOST_TEXT]
    except Exception:  # noqa: BLE001 - its own __str__
        return type(error).__name__


class Remote:
    """Something of the other side. It can be called, read, iterated and compared with another of its kind."""

    def __init__(self, peer: Peer, place: int) -> None:
        self.__dict__.update(peer=peer, place=place)

    def __getattr__(self, name: str) -> Any:
        return self.peer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.peer.ask("set", self, name, value)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.peer.ask("call", self, named, *given)

    def __iter__(self) -> Any:
        iterator = self.peer.ask("iter", self)
        while True:
            try:
                yield self.peer.ask("next", iterator)
            except StopIteration:
                return

    def __next__(self) -> Any:
        return self.peer.ask("next", self)

    def __len__(self) -> int:
        return int(self.peer.ask("len", self))

    def __bool__(self) -> bool:
        return bool(self.peer.ask("bool", self))

    def __getitem__(self, key: Any) -> Any:
        return self.peer.ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.peer.ask("set_item", self, key, value)

    def __contains__(self, value: Any) -> bool:
        return any(one == value for one in self)

    def __str__(self) -> str:
        return str(self.peer.ask("str", self))

    def __repr__(self) -> str:
        return str(self.peer.ask("repr", self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and bool(self.peer.ask("eq", self, other))

    def __hash__(self) -> int:
        return hash(self.place)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and bool(self.peer.ask("isinstance", value, self))

    def _of_two(self, action: str, other: Any) -> Any:
        """An object of the solution's has no say on plain data: it could claim to be equal to any."""
        return self.peer.ask(action, self, other) if isinstance(other, Remote) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return self._of_two("lt", other)

    def __le__(self, other: Any) -> Any:
        return self._of_two("le", other)

    def __add__(self, other: Any) -> Any:
        return self._of_two("add", other)

    def __sub__(self, other: Any) -> Any:
        return self._of_two("sub", other)

    def __mul__(self, other: Any) -> Any:
        return self._of_two("mul", other)

    def __enter__(self) -> Any:
        return self.peer.ask("get", self, "__enter__")()

    def __exit__(self, *what: Any) -> Any:
        return self.peer.ask("get", self, "__exit__")(None, None, None)


ACTIONS: dict[str, Callable[..., Any]] = {
    "get": getattr,
    "set": setattr,
    "call": lambda what, named, *given: what(*given, **named),
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "item": lambda what, key: what[key],
    "set_item": lambda what, key, value: what.__setitem__(key, value),
    "str": str,
    "repr": repr,
    "eq": lambda left, right: left == right,
    "lt": lambda left, right: left < right,
    "le": lambda left, right: left <= right,
    "add": lambda left, right: left + right,
    "sub": lambda left, right: left - right,
    "mul": lambda left, right: left * right,
    "isinstance": isinstance,
}


def _channel() -> socket.socket:
    return socket.socket(fileno=PEER)


def solution_side() -> None:
    """Load the solution, and answer for it."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    with open("solution.txt", encoding="utf-8", errors="surrogatepass") as file:
        source = file.read()
    ACTIONS["load"] = lambda: exec(compile(source, "solution.py", "exec"), module.__dict__)
    ACTIONS["names"] = lambda: {name: one for name, one in vars(module).items() if not name.startswith("__")}
    try:
        Peer(_channel(), ACTIONS).serve()
    except EOFError:
        return


def tests_side() -> None:
    """Run the tests, and print a line [name, what failed or ""] for each, as JSON."""
    report, sys.stdout = sys.stdout, sys.stderr
    peer = Peer(_channel(), {"call"})
    with open("tests.json", encoding="utf-8") as file:
        tests = json.load(file)
    why = _problem(lambda: peer.ask("load"))
    names: dict[str, Any] = {}
    if not why:
        why = _problem(lambda: names.update(peer.ask("names")))
    solution = types.ModuleType("solution")
    solution.__dict__.update(names)
    sys.modules["solution"] = solution
    for name, source in tests:
        for result in [[name, why]] if why else _tested(name, source, names):
            report.write(json.dumps(result) + "\n")
            report.flush()


def _tested(name: str, source: str, names: dict[str, Any]) -> Iterator[list[str]]:
    """A text with test functions or test classes is as many tests; any other is one."""
    space = {**names, "__name__": "tests"}
    why = _problem(lambda: exec(compile(source, name, "exec"), space))
    own = {key: one for key, one in space.items() if key not in names or one is not names[key]}
    functions = [one for key, one in own.items() if key.startswith("test") and isinstance(one, types.FunctionType)]
    classes = [one for one in own.values() if isinstance(one, type) and issubclass(one, unittest.TestCase)]
    cases = [case for one in classes for case in unittest.defaultTestLoader.loadTestsFromTestCase(one)]
    if why or not (functions or cases):
        yield [name, why]
        return
    for one in functions:
        yield [one.__name__, _problem(one)]
    for case in cases:
        yield [str(case), _problem(case.debug)]


def _problem(action: Callable[[], Any]) -> str:
    try:
        action()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - a test may raise anything
        line = traceback.format_exception_only(type(error), error)[-1].strip()
        return line[:MOST_TEXT] or type(error).__name__
    return ""


if __name__ == "__main__":
    {"solution": solution_side, "tests": tests_side}[sys.argv[1]]()
