"""Reports beside the logs: all of them within one share, the newest whole."""

import os
from pathlib import Path

from streamrl.services.controller.health.report_files import DEATH, STACKS, write_report


def test_reports_of_all_kinds_stay_within_their_share_and_the_newest_is_whole(tmp_path: Path) -> None:
    for hour in range(5):
        kind = (STACKS, DEATH)[hour % 2]
        old = tmp_path / f"{kind}-20260101T0{hour}0000Z.txt"
        old.write_bytes(b"." * 300)
        os.utime(old, (hour, hour))
    (tmp_path / "rollout-0.log").write_bytes(b"." * 3000)
    path = write_report(tmp_path, DEATH, "x" * 200, budget=1000, subject="rollout-0")
    assert path.name.startswith("death-2")
    assert path.name.endswith("Z-rollout-0.txt")
    names = {one.name for one in tmp_path.iterdir()}
    others = {"death-20260101T030000Z.txt", "stacks-20260101T040000Z.txt", "rollout-0.log"}
    assert names == {*others, path.name}
    assert path.read_text() == "x" * 200


def test_a_text_that_is_longer_than_the_share_loses_its_end_and_says_so(tmp_path: Path) -> None:
    path = write_report(tmp_path, STACKS, "y" * 5000, budget=1000)
    assert path.stat().st_size == 1000
    assert path.read_text().startswith("yyy")
    assert "5000 bytes in all" in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_report_that_another_process_removes_meanwhile_is_none(tmp_path: Path) -> None:
    # The name is listed, and there is no file any more.
    (tmp_path / "death-20260101T000000Z.txt").symlink_to(tmp_path / "gone")
    assert write_report(tmp_path, DEATH, "x", budget=1000).read_text() == "x"
