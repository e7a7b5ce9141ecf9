"""The codes of refusals: what the documentation says, what the gateway may say, and what it says anywhere."""

import re

import pytest
from support.repository import ROOT

from streamrl.gateway.refusal import CODES, Refusal


def test_the_table_of_the_documentation_has_every_code_under_its_status_and_no_other() -> None:
    section = (ROOT / "docs/gateway.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", section, re.MULTILINE)
    documented = {int(status): re.findall(r"`(\w+)`", codes) for status, codes in rows}
    assert {status: set(codes) for status, codes in documented.items()} == CODES
    assert sum(map(len, documented.values())) == sum(map(len, CODES.values()))


def test_every_code_is_said_somewhere() -> None:
    sources = [path for folder in ("services", "buffers", "streamrl/gateway") for path in (ROOT / folder).rglob("*.py")]
    text = "".join(path.read_text().partition("CODES: Mapping")[0] for path in sources)
    text += (ROOT / "streamrl/gateway/refusal.py").read_text().partition("class Refusal")[2]
    assert [code for codes in CODES.values() for code in codes if f'"{code}"' not in text] == []


def test_a_code_that_is_not_in_the_table_cannot_be_said() -> None:
    with pytest.raises(AssertionError, match="404 no_such_code"):
        Refusal(404, "no_such_code", "nobody knows it")
    with pytest.raises(AssertionError, match="404 invalid_json"):
        Refusal(404, "invalid_json", "it is of another status")
