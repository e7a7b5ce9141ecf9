"""What the learner kept of single tokens is found by step, while it is written, turned over and torn."""

from pathlib import Path

from support.gateway.kept_figures import step_figures

from streamrl.observability.token_figures import line_of
from streamrl.services.inspect.token_lines import TokenLines
from streamrl.system.append_file import AppendFile
from streamrl.types import FrameRef

FRAME = FrameRef("queue/completions/rollout-0.arrow", 128, 999, 4, 0, 0)


def written(step: int, logprob: float, row: int = 2) -> bytes:
    return line_of(step_figures(step, [(FRAME.path, FRAME.offset, row, [logprob])]))


def told(lines: TokenLines, step: int, row: int = 2) -> float | None:
    lines.follow()
    found = lines.of_row(step, FRAME, row)
    return None if found is None else float(found.logprobs[0])


def test_steps_are_found_as_they_are_written_and_the_newest_of_a_number_counts(tmp_path: Path) -> None:
    lines, file = TokenLines(tmp_path), AppendFile(tmp_path / "rank-0.jsonl")
    assert told(lines, 1) is None, "there is no file yet"
    file.append(written(1, -1.0))
    file.append(written(2, -2.0))
    assert (told(lines, 1), told(lines, 2), told(lines, 3)) == (-1.0, -2.0, None)
    assert told(lines, 1, row=3) is None
    file.append(written(1, -8.0))  # after a resume
    assert told(lines, 1) == -8.0
    lines.close()


def test_the_files_of_all_ranks_are_looked_at(tmp_path: Path) -> None:
    lines = TokenLines(tmp_path)
    for rank in range(3):
        (tmp_path / f"rank-{rank}.jsonl").write_bytes(written(1, float(rank), row=rank))
    assert [told(lines, 1, row) for row in range(4)] == [0.0, 1.0, 2.0, None]
    lines.close()


def test_a_file_that_turns_over_is_known_by_its_other_name(tmp_path: Path) -> None:
    size = len(written(1, -1.0))
    lines, file = TokenLines(tmp_path), AppendFile(tmp_path / "rank-0.jsonl", max_bytes=4 * size)
    for step in range(1, 10):
        file.append(written(step, -float(step)))
        assert told(lines, step) == -step
    assert [told(lines, step) for step in (5, 8, 9)] == [None, -8.0, -9.0], "those of the two files that are left"
    assert len(lines._files) == 2
    lines.close()


def test_a_line_that_is_torn_or_none_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    lines = TokenLines(tmp_path)
    path.write_bytes(b"nonsense\n\n\xff\n" + written(1, -1.0) + written(2, -2.0)[:60])
    assert (told(lines, 1), told(lines, 2)) == (-1.0, None)
    path.write_bytes(path.read_bytes() + written(2, -2.0)[60:])
    assert told(lines, 2) == -2.0
    with path.open("r+b") as file:  # damaged behind our back
        file.seek(-30, 2)
        file.write(b"#" * 10)
    assert told(lines, 2) is None
    lines.close()


def test_a_line_longer_than_what_is_read_at_once_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("streamrl.services.inspect.token_lines.CHUNK", 16)
    lines = TokenLines(tmp_path)
    (tmp_path / "rank-0.jsonl").write_bytes(written(1, -1.0) + written(2, -2.0))
    assert (told(lines, 1), told(lines, 2)) == (-1.0, -2.0)
    lines.close()
