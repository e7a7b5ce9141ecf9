"""Results of `make bench-learning` that outlive their runs: found again, and never under other settings."""

import shutil
from pathlib import Path

import msgspec
import pytest
from bench_learning import HERE, made
from learning_study.curves import Result
from learning_study.kept import KeptResults
from learning_study.runs import Run, Setting, plan
from support.learner.learning_results import result

RUN = Run("arithmetic", 0, Setting(4, "tis"))
RESULT = result(staleness=4, correction="tis", task="arithmetic", score=0.7)


def test_what_was_kept_is_found_by_another_process_and_under_its_own_settings_only(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "runs.jsonl"
    kept = KeptResults(path, 300, HERE)
    assert kept.find(RUN) is None
    kept.add(RUN, RESULT)
    for again in (kept, KeptResults(path, 300, HERE)):
        assert again.find(RUN) == RESULT
        assert again.find(Run("arithmetic", 0, Setting(4, "plain"))) is None
        assert again.find(Run("arithmetic", 1, Setting(4, "tis"))) is None
        assert again.find(RUN.warm) is None
    assert KeptResults(path, 299, HERE).find(RUN) is None


@pytest.mark.parametrize(
    "file",
    ["benchmarks/learning.toml", "configs/quickstart.toml", "benchmarks/learning_study/tasks/reasoning_tasks.py"],
)
def test_a_result_of_another_configuration_is_not_taken(file: str, tmp_path: Path) -> None:
    for folder in ("benchmarks", "configs"):
        shutil.copytree(HERE.parent / folder, tmp_path / folder, ignore=shutil.ignore_patterns("out"))
    path, here = tmp_path / "runs.jsonl", tmp_path / "benchmarks"
    KeptResults(path, 300, HERE).add(RUN, RESULT)
    assert KeptResults(path, 300, here).find(RUN) == RESULT  # wherever the project lies
    with (tmp_path / file).open("a") as changed:
        changed.write("\n# changed\n")
    assert KeptResults(path, 300, here).find(RUN) is None


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"name": "arithmetic-0-4-tis"}\n')
    with pytest.raises(msgspec.ValidationError, match="told"):
        KeptResults(tmp_path / "runs.jsonl", 300, HERE)


def test_only_what_is_missing_is_made_with_the_warm_ups_of_it(tmp_path: Path) -> None:
    runs, kept, started = list(plan(["arithmetic", "chain_sum"], 1, [0, 4])), KeptResults(tmp_path / "k", 300, HERE), []
    late = Run("chain_sum", 0, Setting(4, "tis"))
    results = {
        run: result(staleness=run.setting.staleness, correction=run.setting.correction, task=run.task, score=0.5)
        for run in runs
        if run.setting is not None
    }
    for run, one in results.items():
        if run != late:
            kept.add(run, one)

    def result_of(run: Run) -> Result | None:
        started.append(run)
        return results.get(run)

    assert list(made(runs, kept, result_of)) == list(results.values())
    assert started == [late.warm, late]
    assert list(made(runs, KeptResults(tmp_path / "k", 300, HERE), result_of)) == list(results.values())
    assert len(started) == 2
