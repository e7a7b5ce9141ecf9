"""The command line of an SGLang server: what the contract relies on is in it."""

from pathlib import Path
from typing import Any

import pytest

from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.engines.server.process.process import ServerCommand
from streamrl.engines.server.sglang.command import LAUNCHER, kv_tokens, sglang_command


def command(**changes: Any) -> ServerCommand:
    values: dict[str, Any] = {
        "dtype": "bfloat16",
        "device": "cuda",
        "slots": 32,
        "context_length": 512,
        "kv_tokens": 8192,
        "threads": 3,
    }
    return sglang_command(
        Path("/envs/sglang/bin/python"), Path("/models/m"), Path("/private/socket"), **{**values, **changes}
    )


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_the_server_serves_what_was_asked_for() -> None:
    argv = list(command(tensor_parallel=2).argv)
    assert argv[:2] == ["/envs/sglang/bin/python", str(LAUNCHER)]
    assert LAUNCHER.is_file()
    asked = {
        "--model-path": "/models/m",
        "--device": "cuda",
        "--dtype": "bfloat16",
        "--tp-size": "2",
        "--max-running-requests": "32",
    }
    assert {flag: value_of(argv, flag) for flag in asked} == asked


def test_the_server_listens_in_a_private_folder_and_has_all_its_files_there() -> None:
    env = command().env
    assert (env["SGLANG_UNIX_SOCKET"], env["TMPDIR"]) == ("/private/socket", "/private")
    assert env["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == "file:///private/meeting"


@pytest.mark.parametrize(
    "flag", ["--disable-overlap-schedule", "--skip-tokenizer-init", "--incremental-streaming-output"]
)
def test_what_the_contract_relies_on_is_switched_on(flag: str) -> None:
    assert flag in command().argv


def test_it_follows_grammars_by_the_library_of_the_torch_engine() -> None:
    assert value_of(list(command().argv), "--grammar-backend") == "llguidance"


def test_a_completion_may_fill_the_whole_context_although_the_server_keeps_some_of_it() -> None:
    argv = list(command().argv)
    # Release 0.5.23 ends a completion two tokens before the end of either.
    assert int(value_of(argv, "--context-length")) >= 512 + 2
    assert int(value_of(argv, "--max-total-tokens")) >= 8192 + 2


def test_log_probs_are_those_of_the_sampled_distribution_and_of_nothing_repaired() -> None:
    env = command().env
    assert (env["SGLANG_RETURN_ORIGINAL_LOGPROB"], env["SGLANG_SANITIZE_NAN_LOGITS"]) == ("0", "0")
    assert (env["OMP_NUM_THREADS"], env["HF_HUB_OFFLINE"]) == ("3", "1")


def test_a_crash_is_not_put_off_to_be_examined() -> None:
    env = command().env
    assert (env["SGLANG_PYSPY_DUMP_BEFORE_CRASH"], env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"]) == ("0", "0")


def test_a_server_on_a_cpu_gets_kernels_that_a_cpu_has() -> None:
    assert "torch_native" in command(device="cpu").argv
    assert "torch_native" not in command().argv


def test_quantization_is_named_only_when_given_and_further_arguments_come_last() -> None:
    assert "--quantization" not in command().argv
    argv = list(command(quantization="fp8", further=["--dtype", "float16"]).argv)
    assert value_of(argv, "--quantization") == "fp8"
    assert argv[-2:] == ["--dtype", "float16"]


def test_a_cache_holds_as_many_tokens_as_their_keys_and_values_fit() -> None:
    facts = ModelFacts(
        model_type="qwen3",
        context=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        hidden_size=128,
        intermediate_size=384,
        num_parameters=1,
    )
    token_bytes = 2 * 2 * 2 * 32 * 4  # keys and values, layers, heads, numbers of a head, bytes of a number
    assert kv_tokens(facts, "float32", 10 * token_bytes + 5) == 10
    assert kv_tokens(facts, "bfloat16", 10 * token_bytes) == 20


def test_on_a_cpu_plain_torch_takes_over_and_nowhere_else() -> None:
    assert command(device="cpu").env["SGLANG_TORCH_CPU"] == "1"
    assert "SGLANG_TORCH_CPU" not in command().env


def test_ranks_on_processors_may_run_on_all_cores_and_one_rank_is_left_alone():
    name = "SGLANG_CPU_OMP_THREADS_BIND"
    assert command(device="cpu", tensor_parallel=2, cpus=[0, 1, 5]).env[name] == "0,1,5|0,1,5"
    assert name not in command(device="cpu", cpus=[0, 1]).env
    assert name not in command(tensor_parallel=2).env


def test_it_names_experts_where_they_are_asked_for() -> None:
    assert "--enable-return-routed-experts" in command(routes=True).argv
    assert "--enable-return-routed-experts" not in command().argv
