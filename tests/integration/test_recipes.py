"""The recipes of `configs/`: right but for what this machine lacks; each runs three steps with a tiny model of the
same family on data of the same form."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from support.data.chat_model import write_chat_tokenizer, write_rows
from support.runs.finished_run import run
from transformers import AutoConfig, AutoModelForCausalLM

from streamrl.config.loading.load import load_args

ROOT = Path(__file__).parents[2]
RECIPES = ("gsm8k-grpo", "gsm8k-ppo", "gsm8k-lora", "dapo-math", "distill-math")
FAMILY = {
    "gsm8k-grpo": "qwen2",
    "gsm8k-ppo": "qwen2",
    "gsm8k-lora": "qwen2",
    "dapo-math": "qwen3",
    "distill-math": "qwen3",
}
SMALL = {
    "model.dtype": "float32",
    "rollout.device": "cpu",
    "rollout.engine": "torch",
    "rollout.replicas": "1",
    "rollout.slots": "32",
    "rollout.kv_bytes": "67108864",
    "rollout.sampling.max_new_tokens": "24",
    "rollout.deterministic": "true",
    "rollout.gpu_share": "1.0",
    "learner.device": "cpu",
    "learner.gpu_share": "1.0",
    "learner.num_workers": "1",
    "learner.steps": "3",
    "learner.groups_per_step": "4",
    "learner.micro_batch_tokens": "4096",
    "data.max_prompt_tokens": "200",
    "eval.every": "3",
    "eval.max_items": "4",
    "reward.workers": "1",
    "queue.byte_budget": "2147483648",
}
OF_SERVERS = {"rollout.server.python": "none"}
pytestmark = pytest.mark.ray


def write_model(folder: Path, kind: str) -> Path:
    write_chat_tokenizer(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 512, "eos_token_id": 2}
    config = AutoConfig.for_model(kind, **shape, **more, bos_token_id=1, pad_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def verl_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": f"{n}+{n}?"}],
            "reward_model": {"ground_truth": str(2 * n), "style": "rule"},
            "extra_info": {"index": str(n)},
        }
        for n in range(count)
    ]


def write_data(folder: Path) -> None:
    """The data that the recipes name, in the form in which it is published or prepared."""
    for split in ("train", "test"):
        (folder / "data" / "gsm8k").mkdir(parents=True, exist_ok=True)
        rows = [{"question": f"What is {n}+{n}?", "answer": str(2 * n), "solution": f"#### {2 * n}"} for n in range(40)]
        write_rows(folder / "data" / "gsm8k" / f"{split}.jsonl", rows)
    for name in ("dapo-math-17k", "aime-2024"):
        place = folder / "data" / name / "data"
        place.mkdir(parents=True)
        pa.parquet.write_table(pa.Table.from_pylist(verl_rows(40)), place / "train-00000-of-00001.parquet")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    write_data(folder)
    for kind in ("qwen2", "qwen3"):
        write_model(folder / "models" / kind, kind)
    return folder


def options(name: str, place: Path) -> list[str]:
    model = f"{place}/models/{FAMILY[name]}"
    settings = {**SMALL, "model.path": model, "runs": f"{place}/runs", "data.cache": f"{place}/cache"}
    if name == "dapo-math":
        settings |= OF_SERVERS | {"eval.samples": "2", "learner.filter.zero_variance": "false"}
        settings["reward.options"] = "{ overlong = { max_tokens = 24, buffer = 4 } }"
    if name == "distill-math":
        settings["learner.algorithm.reference.path"] = model
    if name == "gsm8k-ppo":
        settings["learner.critic.warmup_steps"] = "1"
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


def test_every_configuration_is_known_here() -> None:
    there = {path.stem for path in (ROOT / "configs").glob("*.toml")}
    quickstarts = {"quickstart", "ppo-quickstart", "tools-quickstart"}
    quickstarts |= {"quickstart-vllm", "quickstart-sglang", "quickstart-megatron"}
    assert there == {*RECIPES, *quickstarts}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_right_but_for_its_model(name: str, place: Path) -> None:
    text = (ROOT / "configs" / f"{name}.toml").read_text()
    assert "Expected curve" in text
    model = f"{place}/models/{FAMILY[name]}"
    given = ["--model.path", model, "--rollout.sampling.max_new_tokens", "64"]
    teacher = ["--learner.algorithm.reference.path", model] if name == "distill-math" else []
    load_args(ROOT / "configs" / f"{name}.toml", [*given, *teacher])


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_three_steps_with_a_small_model_of_its_family(name: str, place: Path) -> None:
    if name == "gsm8k-lora":
        pytest.importorskip("peft")
    done = run(place, "up", str(ROOT / "configs" / f"{name}.toml"), *options(name, place))
    assert done.code == 0, done.output
    lines = [json.loads(line) for line in (place / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/policy" in line] == [1, 2, 3]
    summary = json.loads((place / "runs" / name / "summary.json").read_text())
    assert summary["eval_after"] is not None
    if name == "dapo-math":
        assert {"eval/avg@2", "eval/pass@2"} <= set(summary["eval_parts"])
        assert any("reward/overlong/mean" in line for line in lines)
