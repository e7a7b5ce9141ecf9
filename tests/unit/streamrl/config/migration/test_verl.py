"""verl's files become configurations that a check takes, and what has no equal is told by name, line and reason."""

from pathlib import Path

import pytest
from support.exchange.migrated import SAMPLES, left, migrated, reason, values

from streamrl.config import ConfigProblems
from streamrl.config.estimates.capacity import check_capacity
from streamrl.config.loading.convert import convert
from streamrl.config.migration.migrate import File, migrate
from streamrl.config.migration.table import NO_SUCH_KEY


def test_a_script_of_grpo_on_gsm8k_has_its_numbers() -> None:
    done = migrated("gsm8k_grpo.sh", rows=7473)
    found = values(done)
    assert found["data"]["train"] == "~/data/gsm8k/train.parquet"
    assert found["data"]["eval"] == "~/data/gsm8k/test.parquet"
    assert found["data"]["too_long"] == "skip"
    assert (found["data"]["max_prompt_tokens"], found["rollout"]["sampling"]["max_new_tokens"]) == (512, 1024)
    assert found["model"] == {"path": "models/Qwen2.5-7B-Instruct", "dtype": "bfloat16"}
    assert found["rollout"]["group_size"] == 5
    learner = found["learner"]
    assert (learner["groups_per_step"], learner["mini_batches"]) == (1024, 4)
    assert learner["micro_batch_tokens"] == 20 * 1536
    assert learner["steps"] == 15 * 7
    algorithm = learner["algorithm"]
    assert (algorithm["kl_coef"], algorithm["kl_in"], algorithm["kl_estimator"]) == (0.001, "loss", "k3")
    assert (algorithm["advantage"], algorithm["loss"], algorithm["aggregation"]) == ("grpo", "ppo", "token_mean")
    assert (found["checkpoint"]["every"], found["eval"]["every"]) == (20, 5)
    assert found["reward"]["function"] == "gsm8k"
    assert (found["name"], found["observe"]["trackers"]) == ("qwen2_7b_function_rm", ["tensorboard"])


def test_verls_defaults_that_are_not_ours_are_written_out() -> None:
    found = values(migrated("gsm8k_grpo.sh"))
    optimizer, algorithm = found["learner"]["optimizer"], found["learner"]["algorithm"]
    assert (optimizer["betas"], optimizer["weight_decay"], optimizer["decay"]) == ([0.9, 0.999], 0.01, "constant")
    assert (optimizer["warmup_steps"], optimizer["min_lr_ratio"]) == (0, 0.0)
    assert (algorithm["clip_low"], algorithm["clip_high"], algorithm["dual_clip"]) == (0.2, 0.2, 3.0)
    assert algorithm["proximal"] == "recompute"


def test_learner_and_replicas_have_half_of_the_gpus_each() -> None:
    found = values(migrated("gsm8k_grpo.sh"))
    assert found["learner"]["num_workers"] == 4
    assert (found["rollout"]["replicas"], found["rollout"]["server"]["tensor_parallel"]) == (2, 2)


def test_what_is_left_out_has_name_line_and_reason() -> None:
    done = migrated("gsm8k_grpo.sh")
    lines = (SAMPLES / "gsm8k_grpo.sh").read_text().splitlines()
    for one in done.left:
        assert one.line == 0 or one.name in lines[one.line - 1], one
    assert "cannot replay" in reason(done, "actor_rollout_ref.rollout.top_p")
    assert "rollout.kv_bytes" in reason(done, "actor_rollout_ref.rollout.gpu_memory_utilization")
    assert reason(done, "trainer.my_own_key") != ""
    assert "--rows" in reason(done, "trainer.total_epochs")
    assert "actor_rollout_ref.model.use_remove_padding" not in left(done), "it is as it is here"


def test_every_setting_is_written_or_told_or_asks_for_nothing() -> None:
    text = "a.unknown=1 data.train_batch_size=8\n"
    done = migrate("verl", [File("x.sh", text)])
    assert reason(done, "a.unknown") == NO_SUCH_KEY


def test_a_script_of_dapo_is_followed_through_its_variables() -> None:
    done = migrated("dapo_math.sh")
    found = values(done)
    assert (found["data"]["max_prompt_tokens"], found["rollout"]["sampling"]["max_new_tokens"]) == (2048, 20480)
    assert found["data"]["train"] == "~/verl/data/dapo-math-17k.parquet"
    assert found["model"]["path"] == "~/verl/models/Qwen2.5-32B"
    assert found["learner"]["overlong"] == {"buffer": 4096, "penalty": 1.0}
    assert found["learner"]["filter"] == {"zero_variance": True}
    assert found["learner"]["algorithm"]["clip_high"] == 0.28
    assert found["learner"]["algorithm"]["dual_clip"] == 10.0
    assert (found["learner"]["groups_per_step"], found["learner"]["mini_batches"]) == (512, 16)
    assert found["learner"]["sequence_parallel"] == 8
    assert found["learner"]["micro_batch_tokens"] == 8 * 22528
    assert found["learner"]["execution"] == {"activation_checkpointing": True, "offload": True}
    assert (found["eval"]["samples"], found["eval"]["temperature"]) == (32, 1.0)
    assert "kl_coef" not in found["learner"]["algorithm"]


def test_what_only_a_shell_knows_is_told_and_not_made_up() -> None:
    done = migrated("dapo_math.sh")
    assert "computed" in reason(done, "trainer.total_training_steps")
    assert "steps" not in values(done)["learner"]


def test_several_nodes_are_a_cluster() -> None:
    found = values(migrated("dapo_math.sh"))
    assert (found["ray"]["address"], found["rollout"]["resources"]) == ("auto", {"GPU": 4.0})
    assert (found["learner"]["num_workers"], found["rollout"]["replicas"]) == (8, 2)


def test_a_yaml_file_of_ppo_has_a_critic_and_its_references_are_followed() -> None:
    done = migrated("ppo.yaml", rows=1000)
    found = values(done)
    learner = found["learner"]
    assert (learner["algorithm"]["advantage"], learner["critic"]["policy_lambda"]) == ("gae", 0.95)
    assert learner["critic"]["optimizer"]["lr"] == 1e-5
    assert (learner["critic"]["warmup_steps"], learner["critic"]["value_clip"]) == (5, 0.5)
    assert "path" not in learner["critic"], "the critic begins as the policy does"
    assert (learner["algorithm"]["kl_in"], learner["algorithm"]["kl_estimator"]) == ("reward", "k1")
    assert learner["lora"] == {"rank": 32, "alpha": 16.0}
    assert (learner["steps"], learner["optimizer"]["warmup_steps"]) == (9, 1)
    assert (learner["optimizer"]["lr"], learner["optimizer"]["decay"]) == (1e-6, "cosine")
    assert (learner["algorithm"]["aggregation"], learner["algorithm"]["horizon"]) == ("seq_mean_token_sum_norm", 512)
    assert found["reward"]["function"] == "my_math:score"
    assert found["data"]["eval"] == {"math-test": "~/data/math/test.parquet", "gsm8k-test": "~/data/gsm8k/test.parquet"}
    assert found["data"]["columns"] == {"prompt": "question"}
    assert found["data"]["chat_template_kwargs"] == {"enable_thinking": False}
    assert found["observe"] == {"trackers": ["swanlab"], "project": "verl-examples"}
    assert {"trainer.logger", "algorithm.kl_ctrl.type", "trainer.save_freq"} <= left(done)
    assert "actor_rollout_ref.rollout.multi_turn.enable" in left(done)


@pytest.mark.parametrize(
    ("given", "key", "ours"),
    [
        ("algorithm.adv_estimator=rloo", "learner.algorithm.advantage", "rloo"),
        ("algorithm.adv_estimator=reinforce_plus_plus", "learner.algorithm.advantage", "reinforce_pp"),
        (
            "algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False",
            "learner.algorithm.advantage",
            "dr_grpo",
        ),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "learner.algorithm.aggregation", "seq_mean_token_mean"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "learner.algorithm.loss", "gmpo"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=dppo_kl", "learner.algorithm.divergence", "kl"),
        (
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            "learner.algorithm.aggregation",
            "seq_mean_token_mean",
        ),
        ("algorithm.rollout_correction.rollout_is=sequence", "learner.algorithm.correction_level", "sequence"),
        ("algorithm.rollout_correction.bypass_mode=true", "learner.algorithm.proximal", "rollout"),
        ("actor_rollout_ref.rollout.name=sglang", "rollout.engine", "sglang"),
        (
            "actor_rollout_ref.rollout.max_num_batched_tokens=4096",
            "rollout.server.args",
            ["--max-num-batched-tokens", "4096"],
        ),
        ("data.seed=1 reward.num_workers=3", "reward.workers", 3),
    ],
)
def test_a_key_goes_to_ours(given: str, key: str, ours: object) -> None:
    done = migrate("verl", [File("x.sh", given)])
    assert {one.key: one.value for one in done.written}[key] == ours


@pytest.mark.parametrize(
    ("given", "place", "estimate"),
    [
        ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=kl", "loss", "k1+"),
        ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=mse", "loss", "k2"),
        ("algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl", "reward", "k1"),
        ("algorithm.use_kl_in_reward=True algorithm.kl_penalty=low_var_kl", "reward", "k3"),
    ],
)
def test_a_divergence_is_paid_where_verl_pays_it(given: str, place: str, estimate: str) -> None:
    algorithm = values(migrate("verl", [File("x.sh", given)]))["learner"]["algorithm"]
    assert (algorithm["kl_in"], algorithm["kl_estimator"], algorithm["kl_coef"]) == (place, estimate, 0.001)


@pytest.mark.parametrize("name", ["gsm8k_grpo.sh", "dapo_math.sh", "ppo.yaml", "grpo_gsm8k.py", "reverse_text.toml"])
def test_packs_queue_and_logs_have_room_for_the_rows(name: str) -> None:
    config, problems = convert(values(migrated(name)))
    assert problems == []
    assert check_capacity(config, None, config.data.max_prompt_tokens or 1) == []


def test_remax_has_the_greedy_rollout_within_its_group() -> None:
    done = migrate("verl", [File("x.sh", "algorithm.adv_estimator=remax actor_rollout_ref.rollout.n=4")])
    assert {one.key: one.value for one in done.written}["rollout.group_size"] == 5


def test_a_later_file_wins() -> None:
    files = [File("a.yaml", "data: {train_batch_size: 8}"), File("b.sh", "python x data.train_batch_size=16")]
    done = migrate("verl", files)
    assert {one.key: one.value for one in done.written}["learner.groups_per_step"] == 16


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("x.yaml", "data: [1, 2", "x.yaml:1: not valid YAML"),
        ("x.yaml", "- a\n- b\n", "x.yaml:1: a file of settings is a mapping"),
        ("x.yaml", "a: &x {b: 1}\nc: *x\n", "aliases of YAML are not read"),
        ("x.yaml", "model:\n  preset: tiny\n", "no key of verl"),
        ("x.yaml", "", "a file of settings is a mapping"),
        ("x.sh", "echo 'data.x=1", "x.sh:1: a quote is not closed"),
        ("x.sh", "echo hello", "no key of verl"),
        ("x.yaml", "{" * 3000, "x.yaml"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_message(name: str, text: str, told: str) -> None:
    with pytest.raises(ConfigProblems) as raised:
        migrate("verl", [File(name, text)])
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_value_that_no_key_of_ours_can_have_is_left_out(tmp_path: Path) -> None:
    done = migrate("verl", [File("x.sh", "data.train_batch_size=8 actor_rollout_ref.rollout.n=-3")])
    assert "group_size" not in values(done)["rollout"]
    assert any("rollout.group_size" in one.reason for one in done.left)


MEGATRON = """\
actor_rollout_ref.actor.strategy=megatron \\
actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=null \\
actor_rollout_ref.actor.megatron.expert_model_parallel_size=4 \\
actor_rollout_ref.actor.megatron.param_offload=True \\
actor_rollout_ref.actor.megatron.use_distributed_optimizer=False \\
+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\
actor_rollout_ref.actor.router_replay.mode=R3 \\
data.train_batch_size=8
"""


def test_a_layout_of_megatron_is_ours() -> None:
    done = migrate("verl", [File("x.sh", MEGATRON)])
    learner = values(done)["learner"]
    assert (learner["backend"], learner["router_replay"]) == ("megatron", True)
    assert learner["megatron"] == {
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "expert_parallel": 4,
        "sequence_parallel": True,
        "recompute": "layers",
        "distributed_optimizer": False,
    }
    assert "execution" not in learner, "of FSDP"
    assert "[learner.megatron]" in reason(done, "actor_rollout_ref.actor.megatron.param_offload")


def test_the_layout_says_the_backend_where_nothing_else_does() -> None:
    text = "\n".join(line for line in MEGATRON.splitlines() if "strategy" not in line)
    assert values(migrate("verl", [File("x.sh", text)]))["learner"]["backend"] == "megatron"


def test_a_layout_that_nothing_trains_in_is_left_out() -> None:
    done = migrate("verl", [File("x.sh", MEGATRON.replace("strategy=megatron", "strategy=fsdp2"))])
    assert "megatron" not in values(done)["learner"]
    assert "execution" in values(done)["learner"]
    assert "is not megatron" in reason(done, "actor_rollout_ref.actor.megatron.tensor_model_parallel_size")


def test_a_backend_that_is_not_here_is_told() -> None:
    done = migrate("verl", [File("x.sh", "actor_rollout_ref.actor.strategy=veomni data.train_batch_size=8")])
    assert "FSDP2 or megatron-core" in reason(done, "actor_rollout_ref.actor.strategy")
    assert "backend" not in values(done)["learner"]


@pytest.mark.parametrize(
    ("said", "replayed"),
    [("actor.router_replay.mode=R3", True), ("actor.router_replay.mode=disabled", False),
     ("actor.router_replay.mode=R2", None), ("rollout.enable_rollout_routing_replay=True", True)],
)  # fmt: skip
def test_routes_of_the_engine_are_replayed(said: str, replayed: bool | None) -> None:
    done = migrate("verl", [File("x.sh", f"actor_rollout_ref.{said} data.train_batch_size=8")])
    assert values(done)["learner"].get("router_replay", False) == bool(replayed)
    assert (replayed is None) == any("router_replay" in one.name for one in done.left)
