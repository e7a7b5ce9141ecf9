"""TRL's scripts become configurations; the script is read and never run."""

from pathlib import Path

import pytest
from support.exchange.migrated import SAMPLES, left, migrated, reason, values

from streamrl.config import ConfigProblems
from streamrl.config.migration.migrate import File, Migrated, migrate
from streamrl.config.migration.table import COMPUTED, NO_SUCH_KEY


def of(arguments: str, **options: int) -> Migrated:
    return migrate("trl", [File("x.py", f"GRPOConfig({arguments})\n")], **options)


def written(done: Migrated) -> dict[str, object]:
    return {one.key: one.value for one in done.written}


def test_a_script_on_gsm8k_has_its_numbers() -> None:
    done = migrated("grpo_gsm8k.py", rows=7473)
    found = values(done)
    assert found["name"] == "Qwen-1.5B-GRPO-gsm8k"
    assert found["model"] == {"path": "models/Qwen2.5-1.5B-Instruct", "dtype": "bfloat16"}
    assert (found["data"]["train"], found["data"]["max_prompt_tokens"]) == ("hf:openai/gsm8k/main#train", 256)
    assert found["rollout"]["sampling"]["max_new_tokens"] == 786
    assert found["reward"]["functions"] == {"trl_rewards:correctness_reward_func": 1.0, "math": 0.5}
    learner = found["learner"]
    assert (found["rollout"]["group_size"], learner["groups_per_step"]) == (16, 2)
    assert (learner["steps"], learner["optimizer"]["warmup_steps"]) == (3736, 374)
    optimizer = learner["optimizer"]
    assert (optimizer["lr"], optimizer["betas"], optimizer["weight_decay"]) == (5e-6, [0.9, 0.99], 0.1)
    assert (optimizer["decay"], optimizer["min_lr_ratio"], optimizer["max_grad_norm"]) == ("cosine", 0.0, 0.1)
    algorithm = learner["algorithm"]
    assert (algorithm["advantage"], algorithm["loss"]) == ("dr_grpo", "ppo")
    assert (algorithm["aggregation"], algorithm["horizon"]) == ("seq_mean_token_sum_norm", 786)
    assert (algorithm["clip_low"], algorithm["clip_high"]) == (0.2, 0.28)
    assert (algorithm["kl_coef"], algorithm["kl_estimator"]) == (0.04, "k3")
    assert (algorithm["correction"], algorithm["correction_level"], algorithm["tis_cap"]) == ("tis", "token", 2.0)
    assert learner["overlong"] == {"mask_truncated": True}
    assert learner["lora"] == {"rank": 16, "alpha": 64.0, "targets": ["k_proj", "o_proj", "q_proj", "v_proj"]}
    assert found["observe"]["trackers"] == ["tensorboard"]
    assert (found["rollout"]["engine"], found["rollout"]["gpu_share"]) == ("vllm", 0.5)


def test_what_is_left_out_has_name_line_and_reason() -> None:
    done = migrated("grpo_gsm8k.py")
    lines = (SAMPLES / "grpo_gsm8k.py").read_text().splitlines()
    for one in done.left:
        assert one.line == 0 or one.name.rpartition(".")[2] in lines[one.line - 1], one
    assert reason(done, "GRPOConfig.dataloader_num_workers") == COMPUTED
    assert reason(done, "GRPOConfig.a_key_that_trl_has_not") == NO_SUCH_KEY
    assert "dropout" in reason(done, "LoraConfig.lora_dropout")
    assert "data.eval" in reason(done, "GRPOTrainer.eval_dataset")
    assert "--rows" in reason(done, "GRPOConfig.num_train_epochs")
    assert not {"LoraConfig.task_type", "GRPOConfig.bf16"} & left(done)


def test_devices_of_the_launcher_make_the_batch_larger() -> None:
    one, four = (values(migrated("grpo_gsm8k.py", devices=devices)) for devices in (1, 4))
    assert four["learner"]["groups_per_step"] == 4 * one["learner"]["groups_per_step"]
    assert (four["learner"]["num_workers"], four["rollout"]["replicas"]) == (2, 2)


def test_a_generation_of_several_updates_is_a_step_of_mini_batches() -> None:
    done = of("per_device_train_batch_size=8, gradient_accumulation_steps=2, steps_per_generation=8, max_steps=40")
    found = written(done)
    assert (found["learner.groups_per_step"], found["learner.mini_batches"]) == (8, 4)
    assert found["learner.steps"] == 10


def test_iterations_are_epochs_of_a_batch() -> None:
    found = written(of("num_iterations=2, max_steps=40"))
    assert (found["learner.ppo_epochs"], found["learner.steps"]) == (2, 20)


@pytest.mark.parametrize(
    ("given", "key", "ours"),
    [
        ("loss_type='grpo'", "learner.algorithm.aggregation", "seq_mean_token_mean"),
        ("loss_type='cispo'", "learner.algorithm.loss", "cispo"),
        ("importance_sampling_level='sequence'", "learner.algorithm.loss", "gspo"),
        ("scale_rewards='mean'", "learner.algorithm.advantage", "maxrl"),
        ("optim='adamw_8bit'", "learner.optimizer.kind", "adamw_8bit"),
        ("beta=0.1, sync_ref_model=True", "learner.algorithm.reference.decay", 0.4),
        ("delta=4.0", "learner.algorithm.dual_clip", 4.0),
        ("report_to=['wandb', 'trackio']", "observe.trackers", ["wandb", "trackio"]),
        ("use_vllm=True, vllm_mode='server', vllm_tensor_parallel_size=2", "rollout.server.tensor_parallel", 2),
        ("save_total_limit=3", "checkpoint.keep", 3),
    ],
)
def test_an_argument_goes_to_ours(given: str, key: str, ours: object) -> None:
    assert written(of(given))[key] == ours


@pytest.mark.parametrize("given", ["loss_type='luspo'", "scale_rewards='batch'", "top_p=0.9", "optim='lion_32bit'"])
def test_what_there_is_not_is_told(given: str) -> None:
    assert f"GRPOConfig.{given.partition('=')[0]}" in left(of(given))


def test_a_script_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"open({str(mark)!r}, 'w')\nGRPOConfig(learning_rate=__import__('os').system('true'), seed=3)\n"
    done = migrate("trl", [File("x.py", text)])
    assert not mark.exists()
    assert reason(done, "GRPOConfig.learning_rate") == COMPUTED


def test_a_name_that_is_given_two_values_is_not_read() -> None:
    text = "lr = 1\nlr = 2\nGRPOConfig(learning_rate=lr, **more)\n"
    done = migrate("trl", [File("x.py", text)])
    assert {"GRPOConfig.learning_rate", "GRPOConfig.**"} <= left(done)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:\n", "x.py:1: not valid Python"),
        ("print(1)\n", "no call of GRPOConfig"),
        ("\0", "x.py"),
        ("(" * 5000, "x.py"),
    ],
)
def test_a_script_that_is_none_is_refused_in_one_message(text: str, told: str) -> None:
    with pytest.raises(ConfigProblems) as raised:
        migrate("trl", [File("x.py", text)])
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
