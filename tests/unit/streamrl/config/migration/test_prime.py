"""prime-rl's files become configurations."""

import pytest
from support.exchange.migrated import SAMPLES, left, migrated, reason, values

from streamrl.config import ConfigProblems
from streamrl.config.migration.migrate import File, migrate
from streamrl.config.migration.table import NO_SUCH_KEY


def test_one_file_for_all_has_its_numbers() -> None:
    done = migrated("reverse_text.toml")
    found = values(done)
    assert found["model"] == {"path": "models/Qwen3-0.6B-Reverse-Text-SFT", "dtype": "bfloat16"}
    assert found["learner"]["steps"] == 20
    assert (found["rollout"]["group_size"], found["learner"]["groups_per_step"]) == (16, 8)
    assert found["learner"]["max_staleness"] == 8
    assert (found["rollout"]["sampling"]["max_new_tokens"], found["data"]["max_prompt_tokens"]) == (128, 1920)
    optimizer = found["learner"]["optimizer"]
    assert (optimizer["lr"], optimizer["betas"], optimizer["weight_decay"]) == (3e-6, [0.9, 0.95], 0.01)
    assert (optimizer["decay"], optimizer["warmup_steps"]) == ("linear", 5)
    assert optimizer["min_lr_ratio"] == pytest.approx(0.1)
    algorithm = found["learner"]["algorithm"]
    assert (algorithm["advantage"], algorithm["loss"], algorithm["divergence"]) == ("dr_grpo", "dppo", "tv")
    assert (algorithm["clip_low"], algorithm["clip_high"]) == (0.2, 0.3)
    assert found["learner"]["filter"] == {"zero_variance": True}
    assert found["learner"]["lora"] == {"rank": 8, "alpha": 16.0}
    assert found["learner"]["execution"] == {"activation_checkpointing": True}
    assert (found["checkpoint"]["every"], found["checkpoint"]["keep"]) == (10, 3)
    assert (found["eval"]["every"], found["eval"]["samples"], found["eval"]["temperature"]) == (10, 4, 1.0)
    assert (found["learner"]["num_workers"], found["rollout"]["replicas"]) == (1, 2)
    harness = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    assert found["environment"]["options"] == {"taskset": "reverse-text", "config": {"agent": harness}}
    assert found["reward"]["function"] == "environment"


def test_what_is_left_out_has_name_line_and_reason() -> None:
    done = migrated("reverse_text.toml")
    lines = (SAMPLES / "reverse_text.toml").read_text().splitlines()
    for one in done.left:
        assert one.line == 0 or one.name.rpartition(".")[2] in lines[one.line - 1], one
    assert {
        "orchestrator.oversampling_factor",
        "trainer.scheduler.decay_steps",
        "trainer.loss.kl_tau",
        "trainer.model.attn",
        "inference.gpu_memory_utilization",
        "orchestrator.eval.env",
    } == left(done)


def test_a_file_for_each_part_is_known_by_what_it_has() -> None:
    done = migrated("train.toml", "orch.toml")
    found = values(done)
    assert (found["learner"]["steps"], found["learner"]["optimizer"]["lr"]) == (100, 1e-6)
    assert (found["rollout"]["group_size"], found["learner"]["groups_per_step"]) == (8, 64)
    assert found["learner"]["max_staleness"] == 2
    sampling = found["rollout"]["sampling"]
    assert (sampling["temperature"], sampling["max_new_tokens"]) == (0.8, 2048)
    assert found["environment"]["options"]["config"] == {"taskset": {"difficulty": "easy"}}


def test_an_unknown_key_is_told() -> None:
    done = migrate("prime", [File("x.toml", "max_steps = 3\nsomething = 1\n")])
    assert reason(done, "something") == NO_SUCH_KEY
    assert next(one.line for one in done.left if one.name == "something") == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_steps = \n", "x.toml:1: not valid TOML"),
        ('[model]\npreset = "tiny-qwen3"\n', "no key of prime-rl"),
        ("", "no key of prime-rl"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_message(text: str, told: str) -> None:
    with pytest.raises(ConfigProblems) as raised:
        migrate("prime", [File("x.toml", text)])
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
