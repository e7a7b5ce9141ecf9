"""`streamrl convert` as a user has it: what it writes passes `streamrl check` once model and data are there."""

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.data.chat_model import write_chat_tokenizer, write_rows
from support.exchange.migrated import write_sample
from transformers import AutoConfig, AutoModelForCausalLM

from streamrl.config.migration.migrate import File, migrate
from streamrl.services.cli.main import run_app

SMALLER = {
    "rollout.device": "cpu",
    "rollout.engine": "torch",
    "rollout.replicas": "1",
    "rollout.gpu_share": "1.0",
    "rollout.kv_bytes": "1073741824",
    "rollout.resources": "none",
    "rollout.server.args": "[]",
    "rollout.server.tensor_parallel": "1",
    "ray.address": "local",
    "learner.device": "cpu",
    "learner.gpu_share": "1.0",
    "learner.num_workers": "1",
    "learner.sequence_parallel": "1",
    "learner.execution.offload": "false",
    "queue.byte_budget": "2147483648",
    "queue.disk_budget": "17179869184",
}
"""What this machine has instead of GPUs and of servers."""
SMALL_BATCH = {"learner.groups_per_step": "8", "learner.mini_batches": "1", "rollout.group_size": "4"}
SAMPLES = {
    "gsm8k_grpo.sh": "models/Qwen2.5-7B-Instruct",
    "dapo_math.sh": "home/verl/models/Qwen2.5-32B",
    "ppo.yaml": "models/deepseek-llm-7b-chat",
    "grpo_gsm8k.py": "models/Qwen2.5-1.5B-Instruct",
    "reverse_text.toml": "models/Qwen3-0.6B-Reverse-Text-SFT",
}

CODE = {
    "my_math": "def score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n",
    "trl_rewards": "def correctness_reward_func(completions, answer, **more):\n    return [1.0] * len(answer)\n",
    "own": "class Game:\n    def reset(self, row): ...\n    def step(self, reply): ...\n",
}
"""Modules of the user's that the samples name."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return tmp_path


def write_model(folder: Path) -> None:
    """A tiny one whose context is as long as published ones'."""
    write_chat_tokenizer(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 32768, "eos_token_id": 2}
    config = AutoConfig.for_model("qwen2", **shape, **more, bos_token_id=1, pad_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def options(given: dict[str, str]) -> list[str]:
    return [word for key, value in given.items() for word in (f"--{key}", value)]


@pytest.mark.parametrize(
    "name",
    [name if name in ("ppo.yaml", "grpo_gsm8k.py") else pytest.param(name, marks=pytest.mark.long) for name in SAMPLES],
)
def test_what_is_written_passes_a_check(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(place, name)
    assert run_app(["convert", name, "--out", "run.toml", "--rows", "1000"]) == 0
    told = capsys.readouterr().out
    assert "settings left out:" in told
    assert "`streamrl check` will say" not in told
    assert f"{name}:" in told, "each has its line"
    write_model(place / SAMPLES[name])
    write_rows(place / "rows.jsonl", [{"prompt": f"{n}+{n}?", "answer": str(2 * n)} for n in range(40)])
    data = {"data.train": "rows.jsonl", "data.eval": "rows.jsonl", "data.columns": "none", "data.cache": "cache"}
    if "adapters" not in told and not _has("peft"):
        data["learner.lora.rank"] = "0"
        data |= {"learner.lora.alpha": "none", "learner.lora.targets": "none"}
    for module, text in CODE.items():
        (place / f"{module}.py").write_text(text)
    if "verifiers" in Path("run.toml").read_text() and not _has("verifiers"):
        data |= {"environment.name": "own:Game", "environment.options": "none"}
    given = {**SMALLER, **SMALL_BATCH, **data, "observe.trackers": "[]", "learner.critic.path": "none"}
    assert run_app(["check", "run.toml", *options(given)]) == 0, capsys.readouterr().err
    assert "nothing wrong" in capsys.readouterr().out


def _has(package: str) -> bool:
    return find_spec(package) is not None


def test_without_out_the_configuration_is_on_standard_output_and_the_list_is_not(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sample(place, "gsm8k_grpo.sh")
    assert run_app(["convert", "gsm8k_grpo.sh"]) == 0
    told = capsys.readouterr()
    assert tomllib.loads(told.out)["rollout"]["group_size"] == 5
    assert "actor_rollout_ref.rollout.top_p = 0.9" in told.err


def test_json_has_all_of_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(place, "gsm8k_grpo.sh")
    assert run_app(["convert", "gsm8k_grpo.sh", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["system"] == "verl"
    top_p = next(one for one in told["left"] if one["name"] == "actor_rollout_ref.rollout.top_p")
    assert (top_p["file"], top_p["line"], top_p["value"]) == ("gsm8k_grpo.sh", 36, "0.9")


def test_another_file_in_the_way_is_not_lost(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sample(place, "gsm8k_grpo.sh")
    (place / "run.toml").write_text("mine")
    assert run_app(["convert", "gsm8k_grpo.sh", "--out", "run.toml"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (place / "run.toml").read_text() == "mine"
    assert run_app(["convert", "gsm8k_grpo.sh", "--out", "run.toml", "--force"]) == 0
    assert run_app(["convert", "gsm8k_grpo.sh", "--out", "run.toml"]) == 0, "the same again is no other file"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing.sh"], "nothing.sh: cannot read it"),
        (["notes.txt"], "say whose it is with --system"),
        ([], "give a file to convert"),
        (["bytes.yaml"], "bytes.yaml:2: not UTF-8 text"),
        (["gsm8k_grpo.sh", "--rows", "0"], "--rows 0: at least 1"),
        (["gsm8k_grpo.sh", "--out", "."], "is a folder"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    place: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sample(place, "gsm8k_grpo.sh")
    (place / "notes.txt").write_text("data.x=1")
    (place / "bytes.yaml").write_bytes(b"a: 1\nb: \xff\n")
    assert run_app(["convert", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_comment_cannot_end_a_line() -> None:
    text = "data.train_files='a\rb' data.train_batch_size=4"
    done = migrate("verl", [File("evil\nname.sh", text)])
    assert tomllib.loads(done.text)["learner"]["groups_per_step"] == 4
