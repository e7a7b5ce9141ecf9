"""A run says once by which arithmetic it samples, and when that is another one than before."""

from pathlib import Path

import msgspec
import pytest

from streamrl.services.run.arithmetic import FILE, MOST, ArithmeticRecord
from streamrl.types import Arithmetic

HERE = Arithmetic("plain", "the library keeps rows independent from 4 on", "A")


def test_each_launch_reports_once_and_notices_nothing_while_all_is_as_before(tmp_path: Path) -> None:
    for _ in range(2):
        record = ArithmeticRecord(tmp_path)
        event, notice = record.take(HERE)
        assert event is not None
        assert event["rung"] == "plain"
        assert event["text"] == "products of rows: plain; the library keeps rows independent from 4 on (A)"
        assert notice is None
        assert record.take(HERE) == (None, None)
    assert msgspec.json.decode((tmp_path / FILE).read_bytes()) == [msgspec.to_builtins(HERE)]


@pytest.mark.parametrize(
    "there", [Arithmetic("tiles", "it depends", "A"), Arithmetic("plain", "the library keeps rows independent", "B")]
)
def test_a_run_that_goes_on_elsewhere_says_so_once(tmp_path: Path, there: Arithmetic) -> None:
    ArithmeticRecord(tmp_path).take(HERE)
    record = ArithmeticRecord(tmp_path)
    _, notice = record.take(there)
    assert notice is not None
    assert f"{there.rung} on {there.processor}, before it was plain on A" in notice
    assert record.take(there) == (None, None)
    assert ArithmeticRecord(tmp_path).take(there)[1] is None
    assert record.rungs == list(dict.fromkeys(["plain", there.rung]))


def test_the_same_way_for_another_reason_is_no_news(tmp_path: Path) -> None:
    ArithmeticRecord(tmp_path).take(HERE)
    assert ArithmeticRecord(tmp_path).take(Arithmetic("plain", "for each row", "A"))[1] is None


def test_that_no_way_holds_is_noticed(tmp_path: Path) -> None:
    _, notice = ArithmeticRecord(tmp_path).take(Arithmetic("none", "rows depend", "A"))
    assert notice == "results depend on what shares a batch: rows depend"


@pytest.mark.parametrize("content", [b"", b"{", b'[{"rung": 1}]'])
def test_a_damaged_record_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert ArithmeticRecord(tmp_path).take(HERE)[1] is None
    assert ArithmeticRecord(tmp_path).rungs == ["plain"]


def test_the_record_does_not_grow_without_bound(tmp_path: Path) -> None:
    record = ArithmeticRecord(tmp_path)
    for number in range(2 * MOST):
        record.take(Arithmetic("plain", "", str(number)))
    assert len(msgspec.json.decode((tmp_path / FILE).read_bytes())) == MOST
