"""`fake_vllm` as a program of its own, which a replica starts as it would start vLLM: with the same command line, on
the same private socket. Every request is answered at once, to its last token.
"""

import argparse
import signal
import sys
from pathlib import Path

from support.engines.fake_vllm import METRICS, FakeVllm

TESTS = Path(__file__).parent


def write_program(
    folder: Path, *, version: str = "0.32.0", paused: bool = False, kv_use: float = 0.25, last_words: str = ""
) -> Path:
    """An executable for `rollout.server.python`. paused: it never gets ready. kv_use: what it says of its cache.
    last_words: it says them and ends."""
    program = folder / "python"
    told = {"version": version, "paused": paused, "kv_use": kv_use, "last_words": last_words}
    paths = [str(TESTS), str(TESTS.parent)]
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {paths!r}\n"
        f"from fake_vllm_program import main\nmain(**{told!r})\n"
    )
    program.chmod(0o755)
    return program


def main(*, version: str, paused: bool, kv_use: float, last_words: str) -> None:
    if last_words:
        print(last_words, flush=True)
        sys.exit(3)
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", type=Path)
    given, _ = parser.parse_known_args()
    fake = FakeVllm()
    fake.version, fake.paused, fake.at_once = version, paused, True
    fake.metrics = METRICS.replace("0.25", str(kv_use))
    with fake.served(given.uds):
        signal.pause()
