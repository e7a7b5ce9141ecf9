"""Real servers that are asked for weights in fp8, which no kernel of theirs does on a CPU: refused, in their own words.

vLLM says so when it starts, SGLang when it samples its first token. Neither ever answers with a token."""

from pathlib import Path

import psutil
import pytest
from real_engines import ENGINES, Kind, requests_of, served

from streamrl.errors import ProcessDiedError

REASON = {"vllm": "its first error: RuntimeError: .*fp8_quant", "sglang": "its first error: RuntimeError: .*drivers"}


@pytest.mark.parametrize("name", ENGINES)
def test_a_format_that_the_server_cannot_serve_ends_it_with_the_reason_and_without_a_token(
    name: str, tmp_path: Path
) -> None:
    kind = Kind(name, dtype="bfloat16", quantization="fp8")
    if not kind.python.exists():
        pytest.skip(f"needs .venvs/{name}: make engines")
    before = set(psutil.pids())
    with pytest.raises(ProcessDiedError, match=REASON[name]):
        ask(kind, tmp_path)
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert left == []


def ask(kind: Kind, folder: Path) -> None:
    """Start it and have it sample, until it ends."""
    with served(kind, folder) as server:
        server.engine.submit(requests_of(4))
        while True:
            assert server.engine.step() == []
