"""How a failed launch is told: its first cause once, and a user's mistake without the part that found it."""

from pathlib import Path

import pytest

from streamrl.errors import ComponentError, ConfigError, NonFiniteError, ResourceError, StreamRLError
from streamrl.observability.failure import FailureReport, report_failure
from streamrl.services.run.control.server import described
from streamrl.services.run.ending import failure_of
from streamrl.services.run.folder import RunFolder

MISTAKE = "task 'mine': prompt 7 has 81 tokens, and 58 fit"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def told(run: RunFolder, error: StreamRLError, *, reported: str) -> StreamRLError:
    if reported:
        report_failure(run.path, FailureReport.now("learner-0", "start", reported))
    return failure_of(run, error.exit_code, {"kind": "end", "how": "failed", "error": described(error)})


@pytest.mark.parametrize("kind", [ConfigError, ResourceError])
@pytest.mark.parametrize("reported", ["", MISTAKE])
def test_what_a_user_can_put_right_is_told_as_it_is(run: RunFolder, kind: type[StreamRLError], reported: str) -> None:
    error = told(run, kind(MISTAKE), reported=reported)
    assert (type(error), error.exit_code) == (kind, kind.exit_code)
    assert str(error).splitlines()[0] == MISTAKE
    assert str(error).count(MISTAKE) == 1
    assert ("logs: " in str(error)) == (kind is not ConfigError)


def test_a_part_that_failed_is_named_once_with_the_place_of_the_logs(run: RunFolder) -> None:
    error = told(run, NonFiniteError("the loss is nan"), reported="the loss is nan")
    assert str(error) == f"learner-0 failed in start: the loss is nan\nlogs: {run.logs_path}"


def test_the_first_cause_comes_before_a_later_symptom(run: RunFolder) -> None:
    error = told(run, ComponentError("the pool is closed"), reported="no database")
    assert str(error).splitlines()[:2] == ["learner-0 failed in start: no database", "the pool is closed"]
