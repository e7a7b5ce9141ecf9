"""What is looked at before anything starts: the user's code, in a process of its own, and what it is told by."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.engines.real_models import write_model

from streamrl.config import Config, load_args
from streamrl.errors import ComponentError, ConfigError, DeadlineError
from streamrl.services.cli.main import run_app
from streamrl.services.launch.preflight import preflight

CONFIG = '[model]\npreset = "tiny-qwen3"\n[rollout]\nengine = "scripted"\n'
OWN = """
from math import sqrt

number = 3

def score(completion, *, answer, tolerance=0.1):
    return 1.0

def batch(completions, prompts, completion_ids, answer, **columns):
    return [1.0 for _ in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0

def nothing():
    return 1.0

def swapped(prompt, text):
    return 1.0

def wants(completion, *, answer, rubric):
    return 1.0

def verl_batch(data_sources, solution_strs, ground_truths, extra_infos, judge):
    return [1.0 for _ in solution_strs]
"""

TASK = """
from streamrl.tasks.base import Prompt

class Mine:
    name, num_train, num_held_out = "mine", 10000, 2
    def __init__(self, held_out):
        pass
    def train(self, index):
        return Prompt(f"train-{index}", "1+1=", PAYLOAD)
    def held_out(self, index):
        return Prompt(f"held-out-{index}", "1+2=")
    def fingerprint(self):
        return "mine"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which the user's modules are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def config_of(options: str) -> Config:
    return load_args("run.toml", shlex.split(options))


def says(error: type[Exception], options: str, fragments: Sequence[str]) -> None:
    with pytest.raises(error) as told:
        preflight(config_of(options))
    for fragment in fragments:
        assert fragment in str(told.value)
    assert "\n" not in str(told.value)
    assert " at 0x" not in str(told.value)


@pytest.mark.parametrize("name", ["score", "batch", "compute_score"])
def test_a_reward_of_ones_own_is_found_beside_the_configuration(name: str) -> None:
    preflight(config_of(f"--reward.function own:{name}"))


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("own:number", ["'own:number' is a int, not a function"]),
        ("own:scor", ["the module has no 'scor'; did you mean 'score'? (it is ", "/own.py)"]),
        ("own:zzz", ["has no 'zzz'; it has score, batch, compute_score, nothing, swapped, wants, verl_batch (it"]),
        ("own:nothing", ["reward 'own:nothing' takes no completion; write `def reward("]),
        ("own:swapped", ["first parameter gets the completion and is called 'prompt'", "begin with `completion`"]),
        (
            "own:wants",
            ["'own:wants' cannot be called without 'rubric': give it in reward.options, as { ", "have answer"],
        ),
        ("own:verl_batch", ["cannot be called without 'judge'"]),
        ("length", ["'length' cannot be called without 'target'", "{ length = { target = ... } }"]),
        ("nobody:score", ["importing 'nobody' failed with ModuleNotFoundError", "it must be installed, in a"]),
    ],
)
def test_a_reward_that_cannot_be_had_or_called_is_told_by_key_and_name(name: str, fragments: list[str]) -> None:
    says(ConfigError, f"--reward.function {name}", ["reward.function: reward ", *fragments])


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("def score(:", ["failed with SyntaxError: invalid syntax (broken.py, line 1); mend the file"]),
        (
            "\nimport not_there_at_all",
            ["ModuleNotFoundError", "/broken.py:2 asks for it: install 'not_there_at_all' where streamrl is installed"],
        ),
        ("from own import nobody", ["ImportError: cannot import name 'nobody'", "/broken.py:1 raised it"]),
        ("\n\nraise RuntimeError('boom')", ["RuntimeError: boom; ", "/broken.py:3 raised it; the module must import"]),
        ("raise SystemExit('no')", ["SystemExit: no"]),
    ],
)
def test_a_module_that_does_not_import_is_told_with_its_line_and_the_way_out(text: str, fragments: list[str]) -> None:
    Path("broken.py").write_text(text + "\n")
    for key in ("reward.function", "task.name"):
        says(ConfigError, f"--{key} broken:score", [f"{key}: ", "'broken:score': importing 'broken'", *fragments])


def test_a_module_that_ends_its_process_is_told_by_name_with_its_last_words() -> None:
    Path("hard.py").write_text("import os\nprint('no licence')\nos._exit(5)\n")
    expected = ["reward.functions: reward 'hard:score' ended its process by exit code 5; no licence"]
    says(ComponentError, '--reward.functions \'{ "own:score" = 1.0, "hard:score" = 0.5 }\'', expected)


def test_a_module_that_does_not_come_back_is_told_by_name_and_is_ended() -> None:
    text = f"import os, pathlib, time\npathlib.Path({str(Path('pid').absolute())!r}).write_text(str(os.getpid()))\n"
    Path("slow.py").write_text(f"{text}time.sleep(900)\n")
    expected = ["reward.function: reward 'slow:score' took longer than deadlines.start_s = 5"]
    says(DeadlineError, "--reward.function slow:score --deadlines.start_s 5", expected)
    assert not Path(f"/proc/{Path('pid').read_text()}").exists()


def test_weights_that_do_not_fit_are_told_by_the_key_of_their_folder(tmp_path: Path) -> None:
    good, bad = write_model(tmp_path / "good", 0), write_model(tmp_path / "bad", 0)
    given = json.loads((bad / "config.json").read_text())
    (bad / "config.json").write_text(json.dumps({**given, "intermediate_size": 2 * given["intermediate_size"]}))
    preset = "--model.preset none --model.path"
    preflight(config_of(f"{preset} {good}"))
    told = f"the weights in {bad} do not fit its config.json: model.layers.0.mlp.down_proj.weight is "
    says(ConfigError, f"{preset} {bad}", [f"model.path: {told}"])


def test_options_are_looked_at_by_name() -> None:
    options = "--reward.function {0} --reward.options '{{ \"{0}\" = {{ {1} = 1 }} }}'"
    preflight(config_of(options.format("own:score", "tolerance")))
    preflight(config_of(options.format("length", "target")))
    mistaken = ["reward.options: reward 'own:score' takes no option 'tolerances'; it takes answer, tolerance"]
    says(ConfigError, options.format("own:score", "tolerances"), [*mistaken, "did you mean 'tolerance'?"])
    says(ConfigError, options.format("gsm8k", "methods"), ["reward 'gsm8k'", "did you mean 'method'?"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("gsm8k = { method = 'strictt' }", "'method' of reward 'gsm8k' is 'strictt', and it should be \"strict\", "),
        ("length = { target = '20' }", "'target' of reward 'length' is '20', and it should be an integer"),
        ("exact = { ignore_case = 1 }", "'ignore_case' of reward 'exact' is 1, and it should be true or false"),
    ],
)
def test_a_value_of_another_type_is_refused_of_a_built_in_reward(given: str, told: str) -> None:
    name = given.split()[0]
    says(ConfigError, f'--reward.function {name} --reward.options "{{ {given} }}"', [f"reward.options: {told}"])


@pytest.mark.parametrize(
    ("payload", "says_what"), [("'{'", "train(0) is not JSON: "), ("'[1]'", "train(0) is a JSON list, not an object")]
)
def test_a_payload_that_no_reward_can_read_is_told(payload: str, says_what: str) -> None:
    Path("tasks.py").write_text(TASK.replace("PAYLOAD", payload))
    says(ConfigError, "--task.name tasks:Mine", [f"task.name: task 'mine': the payload of {says_what}"])


def test_what_rows_have_is_looked_for_in_all_parts_of_the_data() -> None:
    Path("tasks.py").write_text(TASK.replace("PAYLOAD", """'{"rubric": 1, "answer": "2"}' if index > 9000 else '{}'"""))
    preflight(config_of("--task.name tasks:Mine --reward.function own:wants"))
    gateway = "--gateway.enabled true"
    says(ConfigError, "--reward.function own:wants", ["cannot be called without 'rubric'"])
    preflight(config_of(f"--reward.function own:wants {gateway}"))  # clients' prompts may have it


def test_a_module_sees_what_it_will_see_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a run work in an empty folder; PYTHONPATH counts from the folder of the call."""
    Path("lib").mkdir()
    Path("lib/elsewhere.py").write_text("import os\nassert os.listdir() == [], os.listdir()\nfrom own import score\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), "lib"]))
    preflight(config_of("--reward.function elsewhere:score"))
    Path("opens.py").write_text("open('run.toml')\nfrom own import score\n")
    says(ConfigError, "--reward.function opens:score", ["FileNotFoundError", "'run.toml'", "/opens.py:1 raised it"])


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ("--reward.function own:scor", 2, "reward.function: reward 'own:scor': the module has no 'scor'"),
        ("--task.name nobody:Task", 2, "task.name: task 'nobody:Task': importing 'nobody' failed"),
        ("--reward.function own.py:score", 2, 'did you mean "own:score"?'),
        ("--reward.function sub/own.py:score", 2, 'did you mean "sub.own:score"?'),
        ("--task.name own.Task", 2, 'did you mean "own:Task"?'),
    ],
)
def test_check_and_up_refuse_the_same_before_anything_is_made(
    options: str, code: int, told: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = []
    for verb in ("check", "up"):
        assert run_app([verb, "run.toml", *shlex.split(options)]) == code
        heard.append(capfd.readouterr().err)
    assert heard[0] == heard[1]
    assert told in heard[0]
    assert len(heard[0].splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["own.py", "run.toml"]
