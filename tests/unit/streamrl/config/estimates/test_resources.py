"""What a run needs against what a machine has, on machines that are plain data."""

import json
import struct

import msgspec
import pytest
from support.repository import ROOT

from streamrl.config import ConfigProblems, ResourceProblems, check_resources, load, load_args
from streamrl.config.estimates.capacity import check_capacity
from streamrl.config.estimates.machine import Machine, cgroup_memory_left, read_machine
from streamrl.config.estimates.model_of import preset_facts, run_facts
from streamrl.config.estimates.model_presets import PRESETS
from streamrl.config.estimates.resources import check_growth, estimate, shortages, store_lies_in_files
from streamrl.config.estimates.sizes import (
    auxiliary_parameters,
    checkpoint_bytes,
    human_bytes,
    kv_request_bytes,
    row_bytes,
    trained_parameters,
    version_bytes,
)

TINY = preset_facts(PRESETS["tiny-qwen3"])
GIB = 2**30


def quickstart(*args: str):
    return load_args(ROOT / "configs" / "quickstart.toml", list(args))


def machine(**changes) -> Machine:
    """A machine that has enough of everything but GPUs."""
    plenty = Machine(
        memory_bytes=64 * GIB,
        shared_memory_bytes=32 * GIB,
        disk_bytes=500 * GIB,
        runs_writable=True,
        num_gpus=0,
        torch_has_cuda=False,
        has_peft=False,
        has_torchao=False,
    )
    return msgspec.structs.replace(plenty, **changes)


def found(config, **changes) -> list[str]:
    return [str(problem) for problem in shortages(config, estimate(config, TINY), machine(**changes))]


def test_a_large_machine_is_enough_for_the_quickstart():
    assert found(quickstart()) == []


def test_the_quickstart_is_estimated_under_six_gibibytes():
    assert estimate(quickstart(), TINY).total_memory < 6 * GIB


def test_too_little_memory_names_the_largest_part_and_both_amounts():
    config = quickstart("--rollout.kv_bytes", str(10**15), "--rollout.slots", str(10**9))
    (problem,) = shortages(config, estimate(config, TINY), machine())
    assert problem.key == "rollout.kv_bytes"
    assert "TiB of memory free and has" not in str(problem)
    assert str(problem).startswith("this machine: rollout.kv_bytes: the run needs about ")
    assert ", and there is 64.0 GiB of memory free; lower the largest part: ray 1.1 GiB, " in str(problem)


def test_memory_is_named_for_processes_when_they_are_what_is_too_much():
    (problem,) = found(quickstart("--rollout.replicas", "400"), shared_memory_bytes=10**15)
    assert problem.startswith("this machine: rollout.replicas: the run needs about ")


def test_small_shared_memory_is_named_with_the_way_to_enlarge_it():
    (problem,) = found(quickstart(), shared_memory_bytes=4 * 2**20)
    assert problem.startswith("this machine: ray.object_store_bytes: the run needs about 4.5 MiB, and")
    assert "--shm-size" in problem


def test_a_containers_shared_memory_is_enough_for_small_versions_since_rays_own_store_gives_way():
    assert found(quickstart(), shared_memory_bytes=64 * 2**20) == []
    assert store_lies_in_files(100 * 2**20, 64 * 2**20)
    assert not store_lies_in_files(100 * 2**20, 200 * 2**20)


def test_a_large_store_of_rays_stays_in_shared_memory():
    (problem,) = found(quickstart("--ray.object_store_bytes", str(2**30)), shared_memory_bytes=64 * 2**20)
    assert "free in /dev/shm; enlarge it" in problem


def test_a_machine_that_cannot_talk_to_itself_is_told_how():
    (problem,) = found(quickstart(), loopback_fault="Network is unreachable")
    assert problem.startswith("this machine: ray.address: 127.0.0.1 does not answer (Network is unreachable), ")
    assert "ip link set lo up" in problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"open_files": 64}, "ray.address: a process may open 64 files, and those of Ray want 128; raise the limit"),
        (
            {"file_bytes": 64 * 2**20},
            "ray.object_store_bytes: the run writes a file in /dev/shm of about 104.5 MiB, and",
        ),
    ],
)
def test_limits_of_a_process_that_are_too_low_are_named(changes, words):
    (problem,) = found(quickstart(), **changes)
    assert problem.startswith(f"this machine: {words}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"disk_bytes": 2**20}, "there is 1.0 MiB free on the disk of runs"),
        ({"runs_writable": False}, "no right to write in runs"),
        ({"runs_writable": None}, "a file stands in the way of this folder: runs"),
    ],
)
def test_a_runs_folder_that_cannot_be_used_says_why(changes, words):
    (problem,) = found(quickstart(), **changes)
    assert problem.startswith("this machine: runs: ")
    assert words in problem


def test_the_gateway_and_the_processes_of_ray_serve_are_counted():
    def needed(*args):
        return estimate(quickstart(*" ".join(args).split()), TINY).memory

    on, serve = "--gateway.enabled=true", "--gateway.insecure_bind=true --gateway.serve.replicas={}"
    assert not {key for key in needed() if key.startswith("gateway")}
    assert needed(on)["gateway.enabled"] == 100 * 2**20
    assert "gateway.serve.replicas" not in needed(on)
    one, three = (needed(on, serve.format(count))["gateway.serve.replicas"] for count in (1, 3))
    assert (one, three) == (600 * 2**20, 1000 * 2**20)
    assert needed(on, serve.format(1), "--gateway.serve.max_replicas=3")["gateway.serve.replicas"] == three


def test_too_many_replicas_of_ray_serve_are_named_by_their_key():
    (problem,) = found(
        quickstart("--gateway.enabled=true", "--gateway.insecure_bind=true", "--gateway.serve.replicas=400")
    )
    assert problem.startswith("this machine: gateway.serve.replicas: the run needs about ")


def test_a_server_of_each_replica_is_counted_with_its_whole_kv_cache():
    facts = preset_facts(PRESETS["tiny-qwen3"])

    def needed(*args):
        return estimate(quickstart("--rollout.engine=vllm", *args), facts).memory

    assert "rollout.engine" not in estimate(quickstart(), facts).memory
    one, two = (needed(f"--rollout.replicas={count}")["rollout.engine"] for count in (1, 2))
    assert two == 2 * one
    more = needed("--rollout.replicas=1", f"--rollout.kv_bytes={2**26 + 1000}")["rollout.engine"]
    assert more == one + 1000
    there = needed("--rollout.replicas=1", "--rollout.server.endpoint=http://127.0.0.1:8000")
    assert "rollout.engine" not in there


ON_GPUS = ("--learner.device=cuda", "--rollout.device=cuda", "--rollout.deterministic=false")
SHARE = 'set "cpu", lower these numbers, or have parts share a GPU (learner.gpu_share, rollout.gpu_share)'
ASKED = (
    'learner.device = "cuda" asks for 2 (learner.num_workers = 2), rollout.device = "cuda" asks for 1 '
    f"(rollout.replicas = 1); {SHARE}"
)


@pytest.mark.parametrize(("there", "words"), [(0, "are 0"), (1, "is 1"), (2, "are 2")])
def test_gpus_of_all_parts_are_counted_together_and_each_key_says_how_many_it_asks_for(there: int, words: str):
    config = quickstart(*ON_GPUS, "--learner.num_workers=2", "--rollout.replicas=1")
    (problem,) = found(config, num_gpus=there, torch_has_cuda=there > 0)
    assert problem == f"this machine: learner.device: the run asks for 3 GPUs, and there {words}: {ASKED}"
    assert found(config, num_gpus=3, torch_has_cuda=True) == []


def test_one_gpu_is_enough_for_parts_that_share_it():
    shares = ("--learner.gpu_share=0.5", "--rollout.gpu_share=0.25")
    config = quickstart(*ON_GPUS, *shares, "--rollout.replicas=2")
    assert found(config, num_gpus=1, torch_has_cuda=True) == []
    (problem,) = found(quickstart(*ON_GPUS, *shares, "--rollout.replicas=3"), num_gpus=1, torch_has_cuda=True)
    assert problem == (
        'this machine: rollout.device: the run asks for 2 GPUs, and there is 1: learner.device = "cuda" asks for 0.5 '
        '(learner.num_workers = 1, learner.gpu_share = 0.5), rollout.device = "cuda" asks for 0.75 '
        f"(rollout.replicas = 3, rollout.gpu_share = 0.25); {SHARE}"
    )


def test_each_replica_and_each_device_of_a_server_is_a_gpu():
    args = ("--rollout.engine=vllm", "--rollout.device=cuda", "--rollout.server.tensor_parallel=2")
    config = quickstart(*args, "--rollout.replicas=2")
    (problem,) = found(config, num_gpus=3, torch_has_cuda=True)
    assert problem == (
        'this machine: rollout.device: the run asks for 4 GPUs, and there are 3: rollout.device = "cuda" asks for 4 '
        f"(rollout.replicas = 2, rollout.server.tensor_parallel = 2); {SHARE}"
    )
    assert found(config, num_gpus=4, torch_has_cuda=True) == []


def test_a_live_run_is_not_scaled_to_more_replicas_than_there_are_gpus(monkeypatch: pytest.MonkeyPatch):
    """Where none is to be seen, however many the machine has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one, two, scoring = (
        quickstart(*ON_GPUS, *args)
        for args in (["--rollout.replicas=1"], ["--rollout.replicas=2"], ["--reward.workers=2"])
    )
    (told,) = [str(problem) for problem in check_growth(one, two) if "GPU" in problem.what]
    assert told.startswith("this machine: rollout.device: the run asks for 3 GPUs, and there are 0: ")
    # What asks for no more is not weighed again.
    for after in (one, scoring):
        assert not any("GPU" in problem.what for problem in check_growth(two, after))


def test_a_gpu_without_a_torch_that_can_use_it_is_named():
    (problem,) = found(quickstart("--learner.device=cuda"), num_gpus=1)
    assert "the installed torch is a CPU build" in problem
    assert found(quickstart("--learner.device=cuda"), num_gpus=1, torch_has_cuda=True) == []


@pytest.mark.parametrize(
    ("table", "advantage"),
    [("learner.optimizer", "grpo"), ("learner.critic.optimizer", "gae"), ("learner.prime.optimizer", "prime")],
)
def test_8_bit_moments_without_their_package_are_named_with_the_extra_where_there_is_such_an_optimizer(
    table: str, advantage: str
):
    config = quickstart(f"--{table}.kind=adamw_8bit", f"--learner.algorithm.advantage={advantage}")
    (problem,) = found(config)
    assert problem.startswith(f"this machine: {table}.kind: the package torchao is not installed; pip install 'torchao")
    assert problem.endswith('(the extra low-bit), or set kind = "adamw"')
    assert found(config, has_torchao=True) == []
    assert found(quickstart(f"--learner.algorithm.advantage={advantage}")) == []


@pytest.mark.parametrize(
    ("given", "small"),
    [
        (["--learner.optimizer.kind=adamw_8bit"], True),
        (["--learner.optimizer.kind=adamw_8bit", "--learner.lora.rank=4", "--warmup.max_steps=0"], False),
    ],
)
def test_8_bit_moments_take_as_much_less_as_is_sure(given: list[str], small: bool):
    """Of adapters some rows are shorter than a block."""
    full, low = quickstart(*given[1:]), quickstart(*given)
    elements = trained_parameters(low, TINY)
    saved = checkpoint_bytes(full, TINY) - checkpoint_bytes(low, TINY)
    needed = [estimate(config, TINY).memory["learner.num_workers"] for config in (full, low)]
    if small:
        assert 0.7 * 8 * elements < saved < 0.75 * 8 * elements
        assert needed[0] - needed[1] == pytest.approx(2 * saved, abs=4)
    else:
        assert (saved, needed[0]) == (0, needed[1])


def test_8_bit_moments_of_a_judge_take_less_where_its_shape_is_known():
    low = quickstart("--learner.algorithm.advantage=gae", "--learner.critic.optimizer.kind=adamw_8bit")
    full, other = quickstart("--learner.algorithm.advantage=gae"), msgspec.structs.replace(TINY, critic_parameters=99)
    assert checkpoint_bytes(full, TINY) - checkpoint_bytes(low, TINY) > 0.7 * 8 * TINY.num_parameters
    assert checkpoint_bytes(full, other) == checkpoint_bytes(low, other)


def test_8_bit_moments_of_a_model_of_other_rows_count_as_float32():
    odd = msgspec.structs.replace(TINY, hidden_size=100)
    full, low = (quickstart(f"--learner.optimizer.kind={kind}") for kind in ("adamw", "adamw_8bit"))
    assert checkpoint_bytes(low, odd) == checkpoint_bytes(full, odd)
    spread = quickstart("--learner.optimizer.kind=adamw_8bit", "--learner.num_workers=4", "--learner.tensor_parallel=4")
    assert checkpoint_bytes(spread, TINY) == checkpoint_bytes(full, TINY)


ADAPTERS = ("--warmup.max_steps=0", "--learner.lora.rank=4")


def test_adapters_without_their_package_are_named_with_its_command():
    (problem,) = found(quickstart(*ADAPTERS))
    assert problem.startswith("this machine: learner.lora.rank: the package peft is not installed; pip install 'peft")
    assert found(quickstart(*ADAPTERS), has_peft=True) == []


def test_adapters_take_less_of_the_learner_and_shared_memory_for_two_models_and_small_versions():
    full, lora = (estimate(quickstart(*args), TINY) for args in (ADAPTERS[:1], ADAPTERS))
    weights, adapters = 4 * TINY.num_parameters, version_bytes(quickstart(*ADAPTERS), TINY)
    assert adapters == 4 * 19456
    assert lora.shared_memory - full.shared_memory == 2 * weights + 3 * adapters - 3 * weights
    # Weights, gradients and two moments, and a checkpoint's snapshot, are those of adapters, beside the model.
    less = lora.memory["learner.num_workers"] - full.memory["learner.num_workers"]
    assert less == (4 * adapters + weights + 3 * adapters) - (4 * weights + 3 * weights)
    assert lora.memory["rollout.replicas"] - full.memory["rollout.replicas"] == 2 * weights
    assert lora.disk < full.disk


def test_a_critic_takes_memory_and_disk_as_a_second_model_that_is_trained():
    gae = "--learner.algorithm.advantage=gae"
    without, beside = (estimate(quickstart(*args), TINY) for args in ((), (gae,)))
    weights = 4 * TINY.num_parameters
    # Weights, gradients and two moments; and weights and moments again in the snapshot of a checkpoint.
    more = beside.memory["learner.num_workers"] - without.memory["learner.num_workers"]
    assert more == (4 + 3) * weights
    checkpoints = quickstart().checkpoint.keep + 1
    assert beside.disk - without.disk == checkpoints * 3 * weights
    assert beside.shared_memory == without.shared_memory
    enough = checkpoints * (2 * 3 * weights + 2**20)
    assert quickstart(gae, "--checkpoint.byte_budget", str(enough)).checkpoint.byte_budget == enough
    with pytest.raises(ConfigProblems, match=rf"checkpoint.byte_budget: must hold .* set at least {enough}"):
        quickstart(gae, "--checkpoint.byte_budget", str(enough - 1))


def test_a_gateway_has_files_of_its_own_and_trajectories_that_wait_in_them():
    without, beside = (
        quickstart(*args) for args in ((), ("--gateway.enabled=true", "--gateway.waiting_bytes=1000000"))
    )
    more = estimate(beside, TINY).disk - estimate(without, TINY).disk
    assert more == 2 * without.queue.segment_bytes + 1000000


def test_an_implicit_reward_model_takes_as_much_and_a_reference_beside_it():
    """The reference is not trained, and in no checkpoint."""
    without, beside = (estimate(quickstart(*args), TINY) for args in ((), ("--learner.algorithm.advantage=prime",)))
    weights = 4 * TINY.num_parameters
    more = beside.memory["learner.num_workers"] - without.memory["learner.num_workers"]
    assert more == (4 + 3 + 1) * weights
    assert beside.disk - without.disk == (quickstart().checkpoint.keep + 1) * 3 * weights
    assert beside.shared_memory == without.shared_memory


def test_a_critic_of_another_size_is_counted_by_its_own_folder(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}}).encode()
    shape = {"model_type": "qwen3", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "<eos>": 1}}}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(60))
    config = quickstart("--learner.algorithm.advantage=gae", "--learner.critic.path", str(tmp_path))
    facts, problems = run_facts(config)
    assert problems == []
    assert facts is not None
    assert auxiliary_parameters(config, facts) == 15


def test_a_cluster_is_not_judged_by_the_memory_of_this_machine():
    config = quickstart("--ray.address", "10.0.0.1:6379", "--learner.device=cuda")
    assert found(config, memory_bytes=0, shared_memory_bytes=0) == []


def test_memory_left_in_a_control_group_counts_droppable_cache_as_free(tmp_path):
    for name, text in {"memory.max": "1000\n", "memory.current": "900\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\nactive_file 100\n")
    assert cgroup_memory_left(tmp_path) == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_memory_left(tmp_path) is None
    assert cgroup_memory_left(tmp_path / "none") is None


def test_this_machine_can_be_read_for_a_folder_that_does_not_exist_yet(tmp_path):
    here = read_machine(tmp_path / "a" / "b")
    assert here.runs_writable is True
    assert min(here.memory_bytes, here.disk_bytes) > 0
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_of_the_runs_folder_is_seen(tmp_path):
    (tmp_path / "file").write_text("")
    config = quickstart("--runs", str(tmp_path / "file" / "runs"))
    assert any("a file stands in the way" in str(problem) for problem in check_resources(config))


def test_a_folder_for_versions_that_is_not_there_is_named_with_the_way_out(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "shared").mkdir()
    problems = {}
    for name in ("none", "file", "shared"):
        text = f'[weights]\nbetween_nodes = "disk"\nfolder = "{tmp_path / name}"\n[model]\npreset = "tiny-qwen3"\n'
        (tmp_path / "run.toml").write_text(text)
        config = msgspec.structs.replace(load(tmp_path / "run.toml"), runs=str(tmp_path))
        problems[name] = [str(one) for one in check_resources(config) if "weights.folder" in str(one)]
    assert [len(problems[name]) for name in ("none", "file", "shared")] == [1, 1, 0]
    assert f"{tmp_path / 'none'}: no folder in which this user may write; make it, on a disk" in problems["none"][0]


def test_resource_problems_are_one_error_with_exit_code_three(tmp_path):
    config = quickstart()
    problems = shortages(config, estimate(config, TINY), machine(disk_bytes=0, memory_bytes=0))
    error = ResourceProblems(tuple(problems))
    assert error.exit_code == 3
    assert isinstance(error, OSError)
    assert str(error).startswith("2 things that this machine has too little of:\n  this machine: runs: ")


def test_sizes_are_what_the_design_counts():
    config = quickstart()
    assert row_bytes(12) == 9 * 12 + 256
    assert kv_request_bytes(config, TINY, 7) == 2 * 2 * 2 * 32 * 4 * 32


def test_the_true_longest_prompt_is_checked_by_the_same_rules():
    config = quickstart()
    assert check_capacity(config, TINY, 59) == []
    (problem,) = check_capacity(config, TINY, 60)
    assert problem.what.startswith("prompt (60) + completion pass the model's context of 64 tokens; set at most 4")
    (problem,) = check_capacity(config, TINY, 64)
    assert "take a model with a longer context" in problem.what


def test_a_task_of_ones_own_is_not_refused_for_prompts_that_nobody_knows_yet(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('task.name = "mine:Task"\nmodel.preset = "tiny-qwen3"\nrollout.sampling.max_new_tokens = 60\n')
    assert load(path).task.name == "mine:Task"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 * 2**40, "3.0 TiB")]
)
def test_bytes_are_written_in_the_largest_fitting_unit(count, text):
    assert human_bytes(count) == text


def test_each_process_that_scores_holds_the_reward_model(tmp_path):
    path = tmp_path / "scores"
    path.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**8], "data_offsets": [0, 0]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (path / "tokenizer.json").write_text("{}")
    one_label = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (path / "config.json").write_text(json.dumps(one_label))
    settings = ["--reward.model.path", str(path), "--reward.workers", "3", "--reward.memory_bytes", str(4 * GIB)]
    config = quickstart(*settings)
    facts, problems = run_facts(config)
    assert (facts.reward_parameters, facts.reward_context, problems) == (10**8, None, [])
    more = estimate(config, facts).total_memory - estimate(quickstart("--reward.workers", "3"), TINY).total_memory
    assert more >= 3 * 4 * 10**8
    with pytest.raises(ConfigProblems, match=r"reward\.memory_bytes: .*set at least 2142177280 \(given 2000000000\)"):
        quickstart(*settings[:4], "--reward.memory_bytes", "2000000000")
