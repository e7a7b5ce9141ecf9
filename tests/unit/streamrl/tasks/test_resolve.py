"""From a name to a task, and from prompts to ids: what is wrong is said before anything starts."""

from pathlib import Path

import numpy as np
import pytest

from streamrl.errors import ConfigError
from streamrl.tasks.arithmetic import ArithmeticTask
from streamrl.tasks.base import Prompt, is_demonstrated
from streamrl.tasks.data.task import rows_left_out
from streamrl.tasks.fitting import fitting_task
from streamrl.tasks.prompts import EncodedPrompts, check_prompts
from streamrl.tasks.resolve import resolve_task
from streamrl.types import IntArray

TASK_MODULE = """
from streamrl.tasks.base import Prompt, digest_prompts

class Echo:
    name = "echo"
    num_held_out = 0
    num_train = 2

    def __init__(self, held_out):
        self.share = held_out

    def train(self, index):
        return Prompt(str(index), "word " * (index + 1))

    held_out = train

    def fingerprint(self):
        return digest_prompts([self.train(0), self.train(1)])

class Empty(Echo):
    num_train = 0

class Broken(Echo):
    def __init__(self, held_out):
        raise RuntimeError("no data today")

class Half:
    name = "half"
    def __init__(self, held_out):
        pass

number = 3
"""


class WordEncoder:
    """One id for each word, as a tokenizer without a bos token."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, text: str) -> IntArray:
        self.calls += 1
        return np.arange(len(text.split()), dtype=np.int32)

    def encode_batch(self, texts: list[str]) -> list[IntArray]:
        return [self.encode(text) for text in texts]


@pytest.fixture(autouse=True)
def own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tasks.py").write_text(TASK_MODULE)
    (tmp_path / "bad_import.py").write_text("import sys\nsys.exit('not here')\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_built_in_task_and_one_of_ones_own_are_found() -> None:
    assert isinstance(resolve_task("arithmetic", 0.5), ArithmeticTask)
    own = resolve_task("own_tasks:Echo", 0.25)
    assert (own.name, own.num_train) == ("echo", 2)
    assert vars(own) == {"share": 0.25}
    assert not is_demonstrated(own)


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("arithmetik", ["unknown task 'arithmetik'", "did you mean 'arithmetic'", "module:name"]),
        ("nonesuch_module:Task", ["importing 'nonesuch_module' failed", "ModuleNotFoundError", "PYTHONPATH"]),
        ("bad_import:Task", ["importing 'bad_import' failed", "SystemExit: not here"]),
        ("own_tasks:Ecko", ["has no 'Ecko'", "did you mean 'Echo'"]),
        ("own_tasks:", ["not of the form"]),
        ("own_tasks:number", ["is a int, not a class"]),
        ("own_tasks:Half", ["lacks num_train, num_held_out, train, held_out, fingerprint"]),
        ("own_tasks:Empty", ["num_train is 0"]),
        ("own_tasks:Broken", ["held_out = 0.1", "RuntimeError: no data today"]),
    ],
)
def test_a_task_that_cannot_be_had_is_named_with_the_way_out(name: str, fragments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_task(name, 0.1)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_prompt_is_encoded_once_and_cannot_be_written_to() -> None:
    encoder = WordEncoder()
    prompts = EncodedPrompts(resolve_task("own_tasks:Echo", 0.0), encoder)
    prompt, ids = prompts.at(1)
    assert prompts.at(1)[1] is ids
    assert encoder.calls == 1
    assert (prompt.text, ids.tolist()) == ("word word ", [0, 1])
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 5


def test_a_prompt_longer_than_the_context_is_refused_by_name() -> None:
    task = resolve_task("own_tasks:Echo", 0.0)
    assert check_prompts(task, WordEncoder(), max_tokens=2) == 2
    with pytest.raises(ConfigError, match=r"prompt 1 has 2 tokens, and 1 fit .*max_new_tokens"):
        check_prompts(task, WordEncoder(), max_tokens=1)


class Silent(ArithmeticTask):
    def train(self, index: int) -> Prompt:
        return Prompt("blank", " ")


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prompt blank .* encodes to no tokens"):
        EncodedPrompts(Silent(), WordEncoder()).at(0)
    with pytest.raises(ConfigError, match=r"prompt blank .* encodes to no tokens"):
        check_prompts(Silent(), WordEncoder(), max_tokens=9)


class Shared(ArithmeticTask):
    """Two ids for all its prompts."""

    def train(self, index: int) -> Prompt:
        return Prompt(f"id-{index % 2}", f"{index}")


def test_training_prompts_that_share_an_id_are_refused_with_two_of_them() -> None:
    with pytest.raises(
        ConfigError, match=r"8998 training prompts have an id .* train\(0\) and train\(2\) are both 'id-0'"
    ):
        check_prompts(Shared(), WordEncoder(), max_tokens=2)


def test_prompts_of_a_class_that_are_too_long_are_left_out_where_one_says_so() -> None:
    task = resolve_task("own_tasks:Echo", 0.5)
    fitting = fitting_task(task, WordEncoder(), max_tokens=1)
    everything = [task.train(index) for index in range(task.num_train)]
    short = [prompt for prompt in everything if len(WordEncoder().encode(prompt.text)) == 1]
    assert 0 < len(short) < len(everything)
    assert [fitting.train(index) for index in range(fitting.num_train)] == short
    assert rows_left_out(fitting)["rows_too_long"] == (
        task.num_train + task.num_held_out - fitting.num_train - fitting.num_held_out
    )
    assert fitting.fingerprint() != task.fingerprint()
    with pytest.raises(IndexError):
        fitting.train(fitting.num_train)
    with pytest.raises(ConfigError, match=r"none of its .* training prompts has 0 tokens or less"):
        fitting_task(task, WordEncoder(), max_tokens=0)
