"""What processor this is, as Linux tells it for x86 and for ARM, and where nothing tells it."""

from pathlib import Path

import pytest

from streamrl.system.processor import STRICT, VARIABLE, is_strict, processor, strict_variables, vendor_and_flags

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) CPU @ 2.80GHz
flags\t\t: fpu avx2 avx512f

processor\t: 1
vendor_id\t: other
"""
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86, "Intel(R) Xeon(R) CPU @ 2.80GHz (GenuineIntel, family 6, model 85)"),
        (ARM, "(implementer 0x41, part 0xd0c)"),
    ],
)
def test_a_processor_is_told_by_what_its_kernels_follow_from(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert processor(tmp_path / "cpuinfo").endswith(expected)


def test_vendor_and_flags_are_those_of_the_first_core(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    assert vendor_and_flags(tmp_path / "cpuinfo") == ("GenuineIntel", {"fpu", "avx2", "avx512f"})
    assert vendor_and_flags(tmp_path / "none") == ("", frozenset())


def test_a_processor_has_a_name_where_linux_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert processor(tmp_path / "none") == processor(tmp_path / "empty") != ""


def test_strict_mode_is_asked_for_where_the_user_chose_none() -> None:
    assert strict_variables({"PATH": "/"}) == {VARIABLE: STRICT}
    assert strict_variables({VARIABLE: "COMPATIBLE"}) == strict_variables({VARIABLE: ""}) == {}
    assert is_strict({VARIABLE: "avx2,strict"})
    assert not is_strict({VARIABLE: "AUTO"})
    assert not is_strict({})
