"""`streamrl submit`: prompts of a file, and what is said of each."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from support.gateway.submitted_prompts import gateway_of

from streamrl.errors import RequestError
from streamrl.services.commands.submit import read_prompts, submit_file

LINES = [
    '{"prompt": "1+1=", "answer": "2"}',
    "",
    '{"prompt": "1+1=", "answer": "2"}',
    '{"prompt": "2+2=", "answer": "4", "key": "mine"}',
]


def test_lines_without_a_key_have_one_that_follows_from_them() -> None:
    first, second, mine = read_prompts(LINES, "file")
    assert first["key"] != second["key"], "two equal lines are two prompts"
    assert (mine["key"], mine["answer"]) == ("mine", "4")
    assert [one["key"] for one in read_prompts(LINES, "file")] == [first["key"], second["key"], "mine"]


@pytest.mark.parametrize("line", ["{", "[]", '{"answer": "2"}', '{"prompt": 3}', '"1+1="'])
def test_a_line_that_is_no_prompt_is_named_by_its_number(line: str) -> None:
    with pytest.raises(RequestError, match=r"^prompts\.jsonl:2: "):
        list(read_prompts([LINES[0], line], "prompts.jsonl"))


async def test_a_file_is_answered_prompt_by_prompt_and_again_when_it_is_submitted_again(tmp_path: Path) -> None:
    file, told = tmp_path / "prompts.jsonl", []
    file.write_text("\n".join([*LINES, '{"prompt": "3+3="}']))
    async with gateway_of(tmp_path) as gateway:
        folder = tmp_path / "somewhere"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"launch": {"gateway": gateway.url}}))
        (folder / "gateway-token").write_text(gateway.token())
        for _ in range(2):
            counts = await asyncio.to_thread(submit_file, str(folder), str(file), "clients", told.append)
            assert counts == (3, 1)
        issued = (await gateway.queue.status.remote())["groups_issued"]  # type: ignore[union-attr]
    assert issued == 4
    answers = [json.loads(line) for line in told]
    assert [one["dropped"] for one in answers if "dropped" in one] == ["reward_failed"] * 2
    assert sum(one["key"] == "mine" for one in answers) == 2
    assert {len(one["rollouts"]) for one in answers if "rollouts" in one} == {8}


def test_nothing_is_submitted_of_a_file_with_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join([LINES[0], "{"]))
    with pytest.raises(RequestError, match=r"prompts\.jsonl:2: not JSON"):
        submit_file(str(tmp_path / "no run is looked for"), str(file), "clients", print)


async def test_standard_input_is_read_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(LINES[3]))
    told: list[str] = []
    async with gateway_of(tmp_path) as gateway:
        folder = tmp_path / "somewhere"
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"launch": {"gateway": gateway.url}}))
        (folder / "gateway-token").write_text(gateway.token())
        assert await asyncio.to_thread(submit_file, str(folder), "-", "clients", told.append) == (1, 0)
    assert json.loads(told[0])["key"] == "mine"
