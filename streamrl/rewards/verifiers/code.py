"""The reward of a program: the tests of its row, run in the sandbox.

What is expected never enters the sandbox of the program: outputs and returned values are compared here, and test
programs run in a sandbox of their own. So a program can be wrong, hang or destroy what it sees, and cannot say that it
passed.
"""

import asyncio
import json
import os
from importlib.resources import files
from typing import Any, Final

from streamrl.errors import StreamRLError
from streamrl.rewards.verifiers.code_tests import (
    Calls,
    StandardInput,
    Tests,
    Texts,
    code_of,
    same_output,
    same_value,
    tests_of,
)
from streamrl.sandbox.program import Ending, Finished, Program
from streamrl.sandbox.sandbox import AnySandbox

Column = list[Any] | None
CONTINUOUS: Final = "continuous"
MOST_REASON: Final = 200
_INSIDE: Final = files("streamrl.sandbox.inside")


class CodeReward:
    """The built-in reward `code`. sandbox: where programs run, started before the first call."""

    def __init__(self, sandbox: AnySandbox) -> None:
        self._sandbox = sandbox
        self._calls = (_INSIDE / "calls.py").read_text()
        self._two_sides = (_INSIDE / "two_sides.py").read_text()

    async def __call__(
        self,
        completions: list[Any],
        prompts: list[Any],
        *,
        credit: str = "all",
        tolerance: float = 0.0,
        most_tests: int = 64,
        concurrency: int = 0,
        tests: Column = None,
        test_list: Column = None,
        test: Column = None,
        test_cases: Column = None,
        input_output: Column = None,
        private_test_cases: Column = None,
        public_test_cases: Column = None,
        reward_model: Column = None,
        ground_truth: Column = None,
        answer: Column = None,
        test_imports: Column = None,
        test_setup_code: Column = None,
        entry_point: Column = None,
        metadata: Column = None,
    ) -> list[dict[str, Any] | Exception]:
        """The share of its tests that each program passes, or 0 unless it is all of them.

        credit: "all", or "continuous" for the share. tolerance: by which numbers may differ. most_tests: the first ones
        count. concurrency: programs at once, by default one for each core. Gives the components `passed`, the share,
        and `tests`, their number."""
        at_once = asyncio.Semaphore(concurrency or len(os.sched_getaffinity(0)))
        columns = {
            "tests": tests,
            "test_list": test_list,
            "test": test,
            "test_cases": test_cases,
            "input_output": input_output,
            "private_test_cases": private_test_cases,
            "public_test_cases": public_test_cases,
            "reward_model": reward_model,
            "ground_truth": ground_truth,
            "answer": answer,
            "test_imports": test_imports,
            "test_setup_code": test_setup_code,
            "entry_point": entry_point,
            "metadata": metadata,
        }
        given = {key: column for key, column in columns.items() if column is not None}
        rows = [{key: column[place] for key, column in given.items()} for place in range(len(completions))]

        async def one(completion: Any, prompt: Any, row: dict[str, Any]) -> dict[str, Any] | Exception:
            try:
                run = _Run(self, at_once, tests_of(row), credit == CONTINUOUS, tolerance, most_tests)
                passed, number, reason = await run.passed(_program(_text(completion), prompt, row))
            except (StreamRLError, ValueError) as error:
                return error
            share = passed / number
            score = share if credit == CONTINUOUS else float(passed == number)
            return {"score": score, "passed": share, "tests": float(number), "reason": reason[:MOST_REASON]}

        return await asyncio.gather(*map(one, completions, prompts, rows))

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()

    async def run(self, at_once: asyncio.Semaphore, program: Program) -> Finished:
        """One program."""
        async with at_once:
            return await self._sandbox.run(program)

    async def call(self, at_once: asyncio.Semaphore, code: str, name: str, given: list[list[Any]]) -> Finished:
        """The program that calls a function of `code`."""
        stdin = json.dumps([name, given]).encode()
        called = Program(source=self._calls, stdin=stdin, files={"solution.txt": code})
        return await self.run(at_once, called)

    async def test(self, at_once: asyncio.Semaphore, code: str, tests: list[tuple[str, str]]) -> Finished:
        """The side of the tests, with `code` on the other."""
        source = self._two_sides
        testing = Program(source=source, arguments=("tests",), files={"tests.json": json.dumps(tests)})
        tested = Program(source=source, arguments=("solution",), files={"solution.txt": code})
        async with at_once:
            return await self._sandbox.run_pair(testing, tested)

    def told(self, finished: Finished) -> str:
        """How a program ended, in words."""
        line = finished.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        what = finished.in_words(self._sandbox.limits)
        return f"{what}: {line}" if line and finished.ending is Ending.EXITED else what


class _Run:
    """The tests of one row. shares: whether all tests are of use, or the first that fails ends it."""

    def __init__(
        self,
        reward: CodeReward,
        at_once: asyncio.Semaphore,
        tests: Tests,
        shares: bool,
        tolerance: float,
        most: int,
    ) -> None:
        self._reward = reward
        self._at_once = at_once
        self._tests = tests
        self._shares = shares
        self._tolerance = tolerance
        self._most = most

    async def passed(self, code: str) -> tuple[int, int, str]:
        """How many passed, of how many, and why the first that did not has not."""
        match self._tests:
            case StandardInput(cases=cases):
                return await self._written(code, cases[: self._most])
            case Calls(name=name, cases=cases):
                return await self._returned(code, name, cases[: self._most])
            case Texts(cases=cases):
                return await self._tested(code, cases[: self._most])

    async def _written(self, code: str, cases: list[tuple[str, str]]) -> tuple[int, int, str]:
        passed, reason = 0, ""
        for place, (given, wanted) in enumerate(cases):
            finished = await self._reward.run(self._at_once, Program(source=code, stdin=given.encode()))
            written = finished.stdout.decode(errors="replace")
            if finished.succeeded and same_output(written, wanted, self._tolerance):
                passed += 1
                continue
            why = "another output" if finished.succeeded else self._reward.told(finished)
            reason = reason or f"test {place}: {why}"
            if not self._shares:
                break
        return passed, len(cases), reason

    async def _returned(self, code: str, name: str, cases: list[tuple[list[Any], Any]]) -> tuple[int, int, str]:
        finished = await self._reward.call(self._at_once, code, name, [given for given, _ in cases])
        lines = _pairs(finished.stdout)
        passed, reason = 0, ""
        for place, (_, wanted) in enumerate(cases):
            answer = lines[place] if place < len(lines) else (False, self._reward.told(finished))
            if answer[0] is True and same_value(answer[1], wanted, self._tolerance):
                passed += 1
            else:
                reason = reason or f"test {place}: {'another value' if answer[0] is True else answer[1]}"
        return passed, len(cases), reason

    async def _tested(self, code: str, cases: list[tuple[str, str]]) -> tuple[int, int, str]:
        finished = await self._reward.test(self._at_once, code, cases)
        results = _pairs(finished.stdout)
        failed = [f"{name}: {why}" for name, why in results if why]
        passed = len(results) - len(failed)
        whole = finished.succeeded and len(results) >= len(cases)
        # What was cut off has at least one test more, of which nothing is known.
        number = max(len(results) + (not whole and not failed), len(cases))
        return passed, number, failed[0] if failed else ("" if whole else self._reward.told(finished))


def _pairs(data: bytes) -> list[tuple[Any, Any]]:
    """The pairs that a program of ours wrote, one a line, as JSON; up to the first line that is something else: it was
    cut off, or the solution has written into it."""
    found = []
    for line in data.decode(errors="replace").split("\n")[:-1]:
        try:
            pair = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(pair, list) or len(pair) != 2:
            break
        found.append((pair[0], pair[1]))
    return found


def _program(completion: str, prompt: Any, row: dict[str, Any]) -> str:
    """The code of a completion; where the prompt is the beginning of a function (HumanEval), it goes on with that."""
    code, entry = code_of(completion), row.get("entry_point")
    begun = isinstance(prompt, str) and entry and f"def {entry}" in prompt and f"def {entry}" not in code
    return f"{prompt}{code}" if begun else code


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")
