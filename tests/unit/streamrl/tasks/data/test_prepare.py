"""Prompts of files: what the model gets, what is left out and why, and that equal data is equal prompts."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.data.chat_model import TEMPLATE, write_chat_tokenizer, write_rows
from transformers import AutoTokenizer

from streamrl.config.data_names import full_address
from streamrl.config.schema.data import DataConfig
from streamrl.errors import ConfigError
from streamrl.models.tokenizer import load_tokenizer
from streamrl.tasks.base import is_demonstrated
from streamrl.tasks.data.cache import open_data
from streamrl.tasks.data.task import DataTask, rows_left_out
from streamrl.tasks.prompts import prompt_ids

USER = {"role": "user", "content": "2+2? é"}
MANY = 10**6


class Data:
    """A model and files in a folder. `open` prepares them."""

    def __init__(self, folder: Path, template: str | None = TEMPLATE) -> None:
        self.folder = folder
        self.model = write_chat_tokenizer(folder / "model", template)

    def rows(self, rows: list[Any], name: str = "train.jsonl") -> str:
        return str(write_rows(self.folder / name, rows))

    def open(self, train: str | tuple[str, ...], max_tokens: int = MANY, **settings: Any) -> DataTask:
        return open_data(DataConfig(train=train, cache=str(self.folder / "cache"), **settings), self.model, max_tokens)

    def ids(self, rows: list[Any], **settings: Any) -> list[list[int]]:
        task = self.open(self.rows(rows), **settings)
        tokenizer = load_tokenizer(self.model)
        return [prompt_ids(task.train(index), tokenizer).tolist() for index in range(task.num_train)]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


def test_messages_are_what_transformers_makes_of_them_once(data: Data) -> None:
    tool = {"type": "function", "function": {"name": "add", "description": "é"}}
    chat = [{"role": "system", "content": "Be short."}, USER]
    rows: list[dict[str, Any]] = [{"prompt": [USER]}, {"prompt": chat}, {"prompt": chat, "tools": [tool]}]
    theirs = AutoTokenizer.from_pretrained(data.model)
    for settings in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        expected = [
            theirs.apply_chat_template(
                row["prompt"], tools=row.get("tools"), add_generation_prompt=True, return_dict=False, **settings
            )
            for row in rows
        ]
        assert data.ids(rows, chat_template_kwargs=settings or None) == expected
        assert all(ids.count(1) == 1 for ids in expected)  # one bos token, the template's


def test_a_text_is_continued_as_it_stands_and_a_question_becomes_a_message(data: Data) -> None:
    tokenizer = AutoTokenizer.from_pretrained(data.model)
    (plain,) = data.ids([{"prompt": "2+2="}])
    assert plain == tokenizer("2+2=")["input_ids"]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "2+2="}], add_generation_prompt=True)["input_ids"]
    for rows, settings in (
        ([{"question": "2+2="}], {}),
        ([{"prompt": "2+2="}], {"as_chat": True}),
        ([{"ask": "2+2="}], {"columns": {"prompt": "ask"}}),
    ):
        assert data.ids(rows, **settings) == [chat]
    assert data.ids([{"question": "2+2="}], as_chat=False) == [plain]


def test_a_system_message_is_put_before_messages_that_have_none(data: Data) -> None:
    system = {"role": "system", "content": "Be short."}
    rows = [{"prompt": [USER]}, {"prompt": [{"role": "system", "content": "Be long."}, USER]}]
    assert data.ids(rows, system="Be short.") == data.ids([{"prompt": [system, USER]}, rows[1]])
    assert data.ids([{"prompt": "2+2? é"}], system="Be short.") == data.ids([{"prompt": [system, USER]}])


def test_without_a_template_questions_are_texts_and_messages_are_refused(tmp_path: Path) -> None:
    data = Data(tmp_path, template=None)
    assert data.ids([{"question": "2+2="}]) == data.ids([{"prompt": "2+2="}])
    with pytest.raises(ConfigError, match="has no chat template"):
        data.open(data.rows([{"prompt": [USER]}]))


def test_rows_that_cannot_be_used_are_counted_and_told_up_to_the_budget(data: Data) -> None:
    rows = [{"prompt": "1"}, "{", {"prompt": ""}, {"prompt": "snowman \u2603"}, {"prompt": "2"}]
    task = data.open(data.rows(rows), max_bad_rows=3)
    assert [task.train(index).text for index in range(task.num_train)] == ["1", "2"]
    assert rows_left_out(task) == {"rows_too_long": 0, "rows_unusable": 3}
    assert [(Path(note.source).name, note.row) for note in task.meta.bad] == [("train.jsonl", n) for n in (2, 3, 4)]
    assert "cannot encode" in task.meta.bad[2].reason
    with pytest.raises(ConfigError, match=r"max_bad_rows = 2 rows .*train.jsonl: row 2: not JSON.*row 3: .*row 4: "):
        data.open(data.rows(rows), max_bad_rows=2)


def test_a_template_that_refuses_makes_a_bad_row(tmp_path: Path) -> None:
    data = Data(tmp_path, "{{ raise_exception('no ' + messages[0].role) if messages|length > 1 }}{{ messages }}")
    task = data.open(data.rows([{"prompt": [USER]}, {"prompt": [USER, USER]}]))
    assert task.num_train == 1
    assert "the model's chat template does not take these messages: no user" in task.meta.bad[0].reason


def test_a_prompt_that_is_too_long_is_an_error_or_left_out(data: Data) -> None:
    rows = [{"prompt": "12"}, {"prompt": "123"}, {"prompt": "1"}]
    with pytest.raises(ConfigError, match=r'row 2: the prompt has 4 tokens, and 3 fit .*too_long = "skip"'):
        data.open(data.rows(rows), max_tokens=3)
    task = data.open(data.rows(rows), max_tokens=3, too_long="skip")
    assert (task.num_train, task.longest_tokens) == (2, 3)
    assert rows_left_out(task) == {"rows_too_long": 1, "rows_unusable": 0}


def test_data_without_a_prompt_to_train_on_is_refused(data: Data) -> None:
    with pytest.raises(ConfigError, match="no prompt to train on: 0 rows"):
        data.open(data.rows([]))
    with pytest.raises(ConfigError, match=r"no prompt to train on: 1 row, 1 of them unusable.*the first: .*row 1"):
        data.open(data.rows([{"prompt": ""}]))


def test_equal_texts_and_equal_ids_of_rows_train_each_under_an_id_of_its_own(data: Data) -> None:
    rows = [{"prompt": "1", "id": 7, "answer": n} for n in range(50)]
    task = data.open((data.rows(rows), data.rows(rows, "again.jsonl")))
    prompts = [task.train(index) for index in range(task.num_train)]
    assert len({prompt.prompt_id for prompt in prompts}) == 100
    assert [json.loads(prompt.payload)["answer"] for prompt in prompts] == [*range(50), *range(50)]


def test_held_out_rows_are_chosen_by_seed_and_equal_prompts_stay_together(data: Data) -> None:
    rows = [{"prompt": f"{n % 200}"} for n in range(1000)]
    address = data.rows(rows)
    first, again = (data.open(address, held_out=0.2, held_out_seed=seed) for seed in (0, 1))
    sides = []
    for task in (first, again):
        train = {task.train(index).text for index in range(task.num_train)}
        held_out = {task.held_out(index).text for index in range(task.num_held_out)}
        assert not train & held_out
        assert task.num_train + task.num_held_out == 1000
        assert 20 < len(held_out) < 60
        sides.append(held_out)
    assert sides[0] != sides[1]


def test_a_column_of_demonstrations_can_be_warmed_up_on(data: Data) -> None:
    rows = [{"prompt": "1+1=", "answer": 2, "worked": "two"}, {"prompt": "1+2=", "worked": None}]
    task = data.open(data.rows(rows), columns={"prompt": "prompt", "demonstration": "worked"})
    assert is_demonstrated(task)
    assert task.demonstration(task.train(0)) == "two"
    assert "no text to learn from" in task.meta.bad[0].reason
    assert not is_demonstrated(data.open(data.rows(rows)))


def test_sets_to_evaluate_on_are_kept_apart_by_name(data: Data) -> None:
    easy, hard = data.rows([{"prompt": "1"}] * 2, "easy.jsonl"), data.rows([{"prompt": "2"}] * 3, "hard.jsonl")
    task = data.open(data.rows([{"prompt": "0"}]), eval={"easy": easy, "hard": hard})
    assert task.held_out_sets == {"easy": 2, "hard": 3}
    assert [task.held_out(index).text for index in range(5)] == ["1", "1", "2", "2", "2"]
    assert len({task.held_out(index).prompt_id for index in range(5)}) == 5


def test_the_same_data_is_prepared_once_and_is_the_same_prompts_when_it_is_prepared_again(data: Data) -> None:
    address = data.rows([{"prompt": f"{n}"} for n in range(30)])
    first = data.open(address, held_out=0.3)
    (folder,) = (data.folder / "cache").iterdir()
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    again = data.open(address, held_out=0.3)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before
    prompts = [first.train(n) for n in range(first.num_train)]
    (folder / "train.prompts").write_bytes(b"torn")
    anew = data.open(address, held_out=0.3)
    assert first.fingerprint() == again.fingerprint() == anew.fingerprint()
    assert [anew.train(n) for n in range(anew.num_train)] == prompts


def test_a_file_that_is_called_in_another_way_is_the_same_data(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    data.rows([{"prompt": "1"}])
    monkeypatch.chdir(data.folder)
    first = data.open("train.jsonl")
    again = data.open(full_address("train.jsonl"))
    assert len(list((data.folder / "cache").iterdir())) == 1
    assert first.train(0) == again.train(0)


@pytest.mark.parametrize("change", ["rows", "template", "settings", "limit"])
def test_what_changes_the_prompts_prepares_them_anew(change: str, data: Data) -> None:
    address = data.rows([{"prompt": [USER]}, {"prompt": "1"}])
    data.open(address)
    settings: dict[str, Any] = {}
    if change == "rows":
        data.rows([{"prompt": [USER]}, {"prompt": "12"}])
    elif change == "template":
        (data.model / "chat_template.jinja").write_text("{{ messages }}")
    elif change == "settings":
        settings = {"as_chat": True}
    else:
        settings = {"max_tokens": 99}
    data.open(address, **settings)
    assert len(list((data.folder / "cache").iterdir())) == 2


def test_a_weight_for_an_address_without_prompts_is_refused(data: Data) -> None:
    addresses = (data.rows([{"prompt": "1"}]), data.rows([], "empty.jsonl"))
    with pytest.raises(ConfigError, match=r"empty.jsonl' has no prompt to train on"):
        data.open(addresses, weights=(1.0, 2.0))


def test_a_cache_that_cannot_be_made_is_said(data: Data) -> None:
    (data.folder / "file").touch()
    settings = DataConfig(train=data.rows([{"prompt": "1"}]), cache=str(data.folder / "file" / "x"))
    with pytest.raises(ConfigError, match=r"data.cache = .* cannot be made"):
        open_data(settings, data.model, MANY)


def test_a_home_that_cannot_be_written_is_no_reason_to_stop(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    (data.folder / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(data.folder / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(data.folder))
    settings = DataConfig(train=data.rows([{"prompt": "1"}]))
    assert open_data(settings, data.model, MANY).num_train == 1


def test_prompts_of_a_row_are_not_kept_in_memory(data: Data) -> None:
    """A prompt is read from the disk each time: the task's own size does not grow with its rows."""
    task = data.open(data.rows([{"prompt": "1"}] * 500))
    assert task.train(3) is not task.train(3)
    with pytest.raises(IndexError, match="there is no prompt 500: there are 500"):
        task.train(500)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task.train(0)))[1] == "1"
    assert np.frombuffer(task.train(0).ids, "<i4").size == 0  # of a text the tokenizer makes them
