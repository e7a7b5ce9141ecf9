"""Real servers that are asked for weights in fp8 on a CPU: what has no kernel for them ends with the reason in its own
words, and without a token; what has one answers with the log-probs of the model, up to the rounding of the format.

vLLM has none and says so when it starts. SGLang falls back on kernels of its packages, which some releases of these
have: else it says so at its first token."""

import re
from pathlib import Path

import psutil
import pytest
from support.engines.real_engines import ENGINES, Kind, expected, requests_of, served
from support.engines.real_models import furthest

from streamrl.errors import ProcessDiedError
from streamrl.types import GenerationResult

REASON = {"vllm": "its first error: RuntimeError: .*fp8_quant", "sglang": "its first error: RuntimeError: .*drivers"}
ROUNDING = 0.6
"""Of a log-prob, in nats, by three bits of mantissa in each weight and activation: twice what was seen. Those of other
tokens, or of other weights, are some nats away."""


@pytest.mark.parametrize("name", ENGINES)
def test_a_format_is_served_up_to_its_rounding_or_ends_the_server_with_the_reason_and_without_a_token(
    name: str, tmp_path: Path
) -> None:
    kind = Kind(name, dtype="bfloat16", quantization="fp8")
    if not kind.python.exists():
        pytest.skip(f"needs .venvs/{name}: make engines")
    before = set(psutil.pids())
    if name == "sglang":
        farthest = ask(kind, tmp_path)
        assert farthest is None or farthest < ROUNDING
    else:
        assert ask(kind, tmp_path) is None
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert left == []


def ask(kind: Kind, folder: Path) -> float | None:
    """Start it and have it sample. How far its log-probs are from the model's; None where it ended with its reason."""
    results: list[GenerationResult] = []
    reason = ""
    try:
        return farthest_of(kind, folder, results)
    except ProcessDiedError as error:
        reason = str(error)
    assert re.search(REASON[kind.name], reason), reason
    assert results == []
    return None


def farthest_of(kind: Kind, folder: Path, results: list[GenerationResult]) -> float:
    """results: takes what it answers."""
    requests = {request.request_id: request for request in requests_of(4)}
    with served(kind, folder) as server:
        server.engine.submit(list(requests.values()))
        while len(results) < len(requests):
            results += server.engine.step()
        model = server.model
    return max(
        furthest(result.logprobs, expected(model, requests[result.request_id], result.token_ids)) for result in results
    )
