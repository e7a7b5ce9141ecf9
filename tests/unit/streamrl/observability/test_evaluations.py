"""The file of evaluations: appended whole, read whatever else is in it, the newest of each name shown."""

from pathlib import Path

from streamrl.observability.evaluations import (
    EvaluationRecord,
    append_evaluations,
    newest_evaluations,
    read_evaluations,
    shown,
)


def record(*, name: str = "gsm8k", step: int = 1, score: float = 0.5, **more: object) -> EvaluationRecord:
    known = {"time_ns": step, "version": f"0.{step}", "source": "lm-eval", "scores": {"acc": score}, **more}
    return EvaluationRecord(name=name, step=step, **known)  # type: ignore[arg-type]


def test_what_is_appended_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    assert read_evaluations(path) == []
    append_evaluations(path, [record(step=1), record(name="arc", step=2)])
    append_evaluations(path, [record(step=3, limit=10.0, errors={"acc": 0.1})])
    assert [(one.name, one.step) for one in read_evaluations(path)] == [("gsm8k", 1), ("arc", 2), ("gsm8k", 3)]
    assert read_evaluations(path)[2] == record(step=3, limit=10.0, errors={"acc": 0.1})


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    append_evaluations(path, [record(step=1)])
    with path.open("ab") as file:
        file.write(b'{"name": 3}\n\xff\xfe\n[]\n{"name": "torn", "st')
    assert [one.step for one in read_evaluations(path)] == [1]


def test_the_newest_of_each_name_is_shown_with_what_answered() -> None:
    told = newest_evaluations([record(step=1, score=0.1), record(name="arc", step=1), record(step=5, score=0.7)])
    assert list(told) == ["arc", "gsm8k"]
    assert told["gsm8k"] == {"acc": 0.7, "step": 5, "version": "0.5", "source": "lm-eval"}


def test_what_is_shown_has_its_sampling() -> None:
    told = shown(record(samples=8, temperature=0.7))
    assert (told["samples"], told["temperature"]) == (8, 0.7)
