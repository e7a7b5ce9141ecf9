"""Logs hold one record a line and no secret, and the first cause of a failure is found again."""

import json
import logging
import subprocess
import sys
import threading

import pytest
import structlog

from streamrl.errors import DataError
from streamrl.observability import logs
from streamrl.observability.failure import FailureReport, clear_failure, first_cause, read_failure, report_failure


@pytest.fixture
def logger(tmp_path):
    level = logging.getLogger().level
    yield logs.configure("reward", tmp_path / "logs")
    logs.release()
    logging.getLogger().setLevel(level)


def records(tmp_path, component: str = "reward") -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "logs" / f"{component}.log").read_text().splitlines()]


def build_report(*, component: str = "learner", time_ns: int = 5) -> FailureReport:
    return FailureReport(component=component, phase="step", version="0.7", cause="boom", time_ns=time_ns)


def test_a_record_says_who_when_and_what(tmp_path, logger):
    logger.info("scored", rows=512, share=0.5)
    (record,) = records(tmp_path)
    assert record["event"] == "scored"
    assert (record["component"], record["level"], record["rows"]) == ("reward", "info", 512)
    assert {"timestamp", "time_ns", "pid", "logger"} <= record.keys()


def test_the_standard_library_writes_to_the_same_file(tmp_path, logger):
    logging.getLogger("some.library").warning("disk at %d%%", 91)
    logging.getLogger("some.library").debug("chatter")
    (record,) = records(tmp_path)
    assert (record["event"], record["level"], record["logger"]) == ("disk at 91%", "warning", "some.library")


def test_secrets_are_not_written(tmp_path, logger):
    logger.info(
        "request",
        token="s3cret",
        api_key="s3cret",
        headers={"Authorization": "Bearer s3cret", "x-auth-token": "s3cret"},
        calls=[{"key": "s3cret"}],
        note="sent Authorization: Bearer s3cret to it",
        tokens=7,
        token_ids=[1, 2],
    )
    logging.getLogger("library").info("header bearer s3cret")
    assert "s3cret" not in (tmp_path / "logs" / "reward.log").read_text()
    first, second = records(tmp_path)
    assert (first["tokens"], first["token_ids"]) == (7, [1, 2])
    assert second["event"] == "header bearer [redacted]"


def test_values_that_are_no_json_are_written_as_text(tmp_path, logger):
    logger.info("odd", folder=tmp_path, numbers={1: float("nan")}, error=KeyError("x"), text="\ud800", big=2**80)
    (record,) = records(tmp_path)
    assert record["folder"] == repr(tmp_path)
    assert record["error"] == "KeyError('x')"
    assert record["numbers"] == {"1": "nan"}
    assert (record["text"], record["big"]) == ("\ud800", 2**80)


def test_an_exception_is_one_line_with_its_traceback(tmp_path, logger):
    try:
        raise RuntimeError("first\nsecond")
    except RuntimeError:
        logger.exception("scoring failed", phase="score")
    (record,) = records(tmp_path)
    assert "Traceback" in record["exception"]
    assert record["level"] == "error"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_uncaught_exception_of_a_thread_is_logged(tmp_path, logger):
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    (record,) = records(tmp_path)
    assert record["level"] == "critical"
    assert "ZeroDivisionError" in record["exception"]


def test_an_uncaught_exception_of_the_process_is_logged_and_still_shown(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from streamrl.observability import logs\n"
        f"logs.configure('learner', Path({str(tmp_path / 'logs')!r}))\n"
        "raise SystemError('gone')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "SystemError: gone" in done.stderr
    (record,) = records(tmp_path, "learner")
    assert "SystemError: gone" in record["exception"]


def test_the_log_stays_below_its_bound(tmp_path, logger):
    bounded = logs.configure("chatty", tmp_path / "logs", max_bytes=20_000)
    for number in range(1000):
        bounded.info("line", number=number)
    sizes = [path.stat().st_size for path in (tmp_path / "logs").glob("chatty.log*")]
    assert sum(sizes) <= 20_000
    assert records(tmp_path, "chatty")[-1]["number"] == 999


def test_configuring_again_replaces_and_release_gives_all_back(tmp_path, logger):
    before = sys.excepthook
    logs.configure("second", tmp_path / "logs").info("once")
    structlog.get_logger("elsewhere").info("twice")
    assert [record["event"] for record in records(tmp_path, "second")] == ["once", "twice"]
    assert records(tmp_path) == []
    logs.release()
    assert sys.excepthook is not before
    assert not [h for h in logging.getLogger().handlers if isinstance(h, logs.ComponentHandler)]


def test_the_first_report_stays(tmp_path):
    assert read_failure(tmp_path) is None
    assert report_failure(tmp_path, build_report(component="learner"))
    assert not report_failure(tmp_path, build_report(component="reward", time_ns=1))
    assert read_failure(tmp_path) == build_report(component="learner")
    assert [path.name for path in tmp_path.iterdir()] == ["failure.json"]
    clear_failure(tmp_path)
    clear_failure(tmp_path)
    assert read_failure(tmp_path) is None


def test_of_many_reports_at_once_exactly_one_is_first(tmp_path):
    won: list[bool] = []

    def report(number: int) -> None:
        won.append(report_failure(tmp_path, build_report(component=f"part-{number}", time_ns=number)))

    threads = [threading.Thread(target=report, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_invariant_7_a_failure_names_component_phase_version_and_cause():
    assert str(build_report()) == "learner failed in step under version 0.7: boom"


def test_a_damaged_report_is_named(tmp_path):
    for damaged in (b"{", b'{"component": "\xff"}'):
        (tmp_path / "failure.json").write_bytes(damaged)
        with pytest.raises(DataError, match=r"failure\.json is no failure report"):
            read_failure(tmp_path)


def test_the_report_is_the_first_cause_where_there_is_one(tmp_path, logger):
    logger.error("earlier")
    report_failure(tmp_path, build_report())
    assert first_cause(tmp_path) == build_report()


def test_without_a_report_the_earliest_error_record_is_the_cause(tmp_path, logger):
    assert first_cause(tmp_path) is None
    logger.info("fine")
    try:
        raise ValueError("reward is NaN")
    except ValueError:
        logger.exception("scoring failed", phase="score", version="0.3")
    logs.configure("learner", tmp_path / "logs").error("lost the reward stage")
    cause = first_cause(tmp_path)
    assert (cause.component, cause.phase, cause.version) == ("reward", "score", "0.3")
    assert cause.cause == "scoring failed: ValueError: reward is NaN"
    assert first_cause(tmp_path, since_ns=cause.time_ns + 1).component == "learner"


def test_events_count_and_foreign_lines_do_not(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rollout-0.log").write_text(
        'Fatal Python error\n[1]\n{"level":"error"}\n{"level":"error","time_ns":9,"event":"late"}\n{"torn'
    )
    assert first_cause(tmp_path).component == "rollout-0"
    (tmp_path / "events.jsonl").write_text(
        '{"level":"error","time_ns":4,"component":"reward","phase":"run","event":"exit code 9"}\n'
    )
    assert str(first_cause(tmp_path)) == "reward failed in run: exit code 9"
