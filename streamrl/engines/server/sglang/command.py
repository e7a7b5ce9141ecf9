"""How an SGLang server is started as `SglangContract` needs it: values in, a command out. Pure.

The launcher lies in `inside` and runs in the server's own environment; nothing of that is imported here.
"""

from collections.abc import Sequence
from pathlib import Path

from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.engines.server.process.process import ServerCommand

LAUNCHER = Path(__file__).parent / "inside" / "streamrl_sglang_launcher.py"
STREAM_INTERVAL = 8
"""Tokens between two pieces of a completion. A piece for each token costs the server more than a small model's forward
pass; what a replica journals is counted in dozens."""

_KEPT = 4
"""Tokens of context and cache that the server never gives to a request; two were seen."""

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_CPU = (
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    # Otherwise a scheduler with nothing to do checks its books in a loop, on a core that the learner could have.
    "--sleep-on-idle",
)
_CPU_ENV = {
    # Lets the platform of `deploy/sglang_cpu` take over, where it is installed: SGLang's own one for CPUs needs AMX.
    "SGLANG_TORCH_CPU": "1",
    # The first grammar would have a C++ compiler started, and end the server where there is none.
    "TORCH_COMPILE_DISABLE": "1",
}


def sglang_command(
    python: Path,
    model_folder: Path,
    socket: Path,
    *,
    dtype: str,
    device: str,
    slots: int,
    context_length: int,
    kv_tokens: int,
    threads: int,
    tensor_parallel: int = 1,
    quantization: str | None = None,
    cpus: Sequence[int] = (0,),
    routes: bool = False,
    further: Sequence[str] = (),
) -> ServerCommand:
    """The server for `model_folder` behind the Unix socket `socket`, run by `python`.

    The socket's folder must be private: the server's other files lie there, too. slots: requests at once.
    context_length: tokens of prompt and completion together. kv_tokens: of its KV cache, see `kv_tokens`. cpus: that
    its ranks may run on. routes: it names the experts of tokens. further: arguments that come last, and so win.
    """
    argv = [
        *(str(python), str(LAUNCHER), "--model-path", str(model_folder)),
        # It would ask itself for something by the port that it does not listen on; nobody else does on this one.
        *("--skip-server-warmup", "--host", "127.0.0.1", "--port", "1"),
        *("--device", device, "--dtype", dtype, "--tp-size", str(tensor_parallel)),
        # It keeps some of both to itself, and shortens a completion that would need them without a word.
        *("--context-length", str(context_length + _KEPT), "--max-total-tokens", str(kv_tokens + _KEPT)),
        *("--max-running-requests", str(slots)),
        # Ids in, ids out. What follows a grammar has a tokenizer of its own (the launcher).
        *("--skip-tokenizer-init", "--grammar-backend", "llguidance"),
        *("--incremental-streaming-output", "--stream-interval", str(STREAM_INTERVAL)),
        # Otherwise a token is held back while the next step runs, and counted to the version that comes between.
        "--disable-overlap-schedule",
        # A line in the log for each request costs about what a small model's token does.
        *("--log-level-http", "warning"),
        # What the model's folder recommends is not what was asked for.
        *("--sampling-defaults", "openai"),
        *(() if quantization is None else ("--quantization", quantization)),
        *(("--enable-return-routed-experts",) if routes else ()),
        *(_CPU if device == "cpu" else ()),
        *further,
    ]
    env = {
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # 1 takes the temperature out of the log-probs
        "SGLANG_SANITIZE_NAN_LOGITS": "0",  # 1 makes finite log-probs of numbers that are not
        # Otherwise a crash is a minute of silence, while the server takes pictures of itself.
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the tokens it keeps; positions stay in the model's
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "SGLANG_UNIX_SOCKET": str(socket),
        # Otherwise its workers meet at a port that is open on all of the machine's addresses.
        "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{socket.parent}/meeting",
        "TMPDIR": str(socket.parent),
    }
    return ServerCommand(argv, {**env, **_CPU_ENV, **_cores(tensor_parallel, cpus)} if device == "cpu" else env)


def _cores(ranks: int, cpus: Sequence[int]) -> dict[str, str]:
    """Each rank may run on every core; unasked it takes a NUMA node for itself, and few machines have two."""
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join([",".join(map(str, cpus))] * ranks)} if ranks > 1 else {}


def kv_tokens(facts: ModelFacts, dtype: str, kv_bytes: int) -> int:
    """Tokens that a KV cache of `kv_bytes` holds."""
    return kv_bytes // (2 * facts.num_layers * facts.num_kv_heads * facts.head_dim * _ITEM_BYTES[dtype])
