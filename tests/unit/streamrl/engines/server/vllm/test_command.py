"""The command line of a vLLM server: what the contract relies on is in it."""

import json
from pathlib import Path
from typing import Any

from streamrl.engines.server.process.process import ServerCommand
from streamrl.engines.server.vllm.command import vllm_command


def command(**changes: Any) -> ServerCommand:
    values: dict[str, Any] = {
        "dtype": "bfloat16",
        "device": "cuda",
        "slots": 64,
        "context_length": 512,
        "kv_bytes": 2**30,
        "threads": 4,
    }
    return vllm_command(Path("/venv/bin/python"), Path("/model"), Path("/private/socket"), **{**values, **changes})


def test_the_command_line_has_the_users_words_last_and_no_open_port() -> None:
    made = command(tensor_parallel=2, quantization="fp8", further=("--max-num-seqs", "8"))
    line = " ".join(made.argv)
    assert line.startswith("/venv/bin/python ")
    assert "serve /model --uds /private/socket --dtype bfloat16" in line
    assert "--tensor-parallel-size 2 --quantization fp8" in line
    assert "--kv-cache-memory-bytes 1073741824" in line
    assert line.endswith("--max-num-seqs 8")
    assert "--enforce-eager" not in line
    assert "--no-enable-chunked-prefill" not in line
    assert not {"--host", "--port"} & set(made.argv)
    assert made.env["OMP_NUM_THREADS"] == "4"


def test_all_its_sockets_lie_in_the_folder_that_goes_with_it() -> None:
    assert command().env["VLLM_RPC_BASE_PATH"] == "/private"


def test_it_reads_a_tokenizer_only_to_follow_grammars_by_the_library_of_the_torch_engine() -> None:
    without, argv = command(tokenizer=False).argv, command(tokenizer=True).argv
    assert "--skip-tokenizer-init" in without
    assert "--structured-outputs-config" not in without
    assert "--skip-tokenizer-init" not in argv
    assert json.loads(argv[argv.index("--structured-outputs-config") + 1]) == {"backend": "guidance"}


def test_it_names_experts_where_they_are_asked_for_by_the_part_of_it_that_can() -> None:
    asked, plain = command(routes=True), command()
    assert "--enable-return-routed-experts" in asked.argv
    assert asked.env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert "--enable-return-routed-experts" not in plain.argv
    assert "VLLM_USE_V2_MODEL_RUNNER" not in plain.env
