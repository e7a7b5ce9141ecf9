"""How a vLLM server is started: values in, argument list and environment out. Pure.

The launcher and the worker extension lie in `inside`, which is put on the server's import path alone.
"""

from collections.abc import Sequence
from pathlib import Path

from streamrl.engines.server.process.process import ServerCommand
from streamrl.engines.server.vllm.answers import asked_top
from streamrl.types import MOST_TOP_LOGPROBS

INSIDE = Path(__file__).parent / "inside"
STREAM_INTERVAL = 16
"""Tokens of one piece of an answer. A piece costs the server about as much as a token of a small model, and nobody
needs them faster: partial tokens are written down 64 at a time."""
_BATCH_TOKENS = 4096
"""Of one step on a CPU; not less than one request may have."""


def vllm_command(
    python: Path,
    model_folder: Path,
    socket: Path,
    *,
    dtype: str,
    device: str,
    slots: int,
    context_length: int,
    kv_bytes: int,
    threads: int,
    seed: int = 0,
    tensor_parallel: int = 1,
    quantization: str | None = None,
    tokenizer: bool = False,
    routes: bool = False,
    further: Sequence[str] = (),
) -> ServerCommand:
    """The server for `model_folder` behind the Unix socket `socket`, run by `python`.

    The socket's folder must be private, and goes with the server: its other sockets lie there, too. slots: requests at
    once. context_length: tokens of prompt and completion together. kv_bytes: of its KV cache. tokenizer: the folder has
    one, so that it follows grammars. routes: it names the experts of each token. further: arguments that come last, and
    so win.
    """
    argv = [
        *(str(python), str(INSIDE / "streamrl_vllm_launcher.py"), "serve", str(model_folder)),
        *("--uds", str(socket), "--dtype", dtype, "--seed", str(seed)),
        *("--max-model-len", str(context_length), "--max-num-seqs", str(slots)),
        *("--tensor-parallel-size", str(tensor_parallel)),
        *(() if quantization is None else ("--quantization", quantization)),
        *_FIXED,
        *(_GRAMMARS if tokenizer else ("--skip-tokenizer-init",)),
        *("--kv-cache-memory-bytes", str(kv_bytes)),
        *(("--enable-return-routed-experts",) if routes else ()),
        *(_cpu(context_length) if device == "cpu" else ()),
        *further,
    ]
    # Its processes meet over sockets that a killed one leaves, in /tmp unless it is told of another folder.
    meeting = {"VLLM_RPC_BASE_PATH": str(socket.parent)}
    runner = {"VLLM_USE_V2_MODEL_RUNNER": "1"} if routes else {}  # that of before cannot name experts
    env = {**_ENV, **meeting, **runner, "OMP_NUM_THREADS": str(threads), **(_CPU_ENV if device == "cpu" else {})}
    return ServerCommand(argv, env)


def _cpu(context_length: int) -> tuple[str, ...]:
    return (
        "--enforce-eager",  # compiling takes longer than a small model's whole run
        # A prompt with a seed that is read in two parts ends the server: generators of CPUs cannot be set back. After
        # an update in mode `recompute` every running request is such a prompt.
        "--no-enable-chunked-prefill",
        "--max-num-batched-tokens",
        str(max(_BATCH_TOKENS, context_length)),
    )


_FIXED = (
    "--enable-scale-out",  # opens /inference/v1/generate, the only route with ids in, ids out and versions
    "--logprobs-mode",
    "processed_logprobs",  # of the distribution that is sampled; the default leaves the temperature out
    "--max-logprobs",
    str(asked_top(MOST_TOP_LOGPROBS)),
    "--worker-extension-cls",
    "streamrl_vllm_extension.WeightFiles",
    "--stream-interval",
    str(STREAM_INTERVAL),
    "--generation-config",
    "vllm",  # a model folder's own sampling defaults would apply unseen
    "--disable-uvicorn-access-log",
)

_GRAMMARS = ("--structured-outputs-config", '{"backend": "guidance"}')
"""The library that the torch engine follows grammars with, so that one grammar is the same one to both. The
tokenizer is for nothing else: no request asks for text."""

_ENV = {
    "PYTHONPATH": str(INSIDE),
    "VLLM_SERVER_DEV_MODE": "1",  # the routes that load weights; only whoever may open the socket reaches them
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # what its processes open among themselves is on this machine, too
}
_CPU_ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every replica binds its threads to the same first cores
    "TORCH_COMPILE_DISABLE": "1",  # eager or not, the sampler would be compiled at the first request, for half a minute
}
