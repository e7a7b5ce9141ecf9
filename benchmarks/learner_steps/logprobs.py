"""Log-probs with a vocabulary of 150k: peak memory and time of one forward and backward, against all logits at once.

    python -m learner_steps.logprobs FORM TOKENS ROUNDS HIDDEN

is one measurement, in a process of its own: JSON of the bytes at the peak above what was there before and the gradients
that both forms leave, and, where both take turns (`both`), of the seconds of each.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import Report

from streamrl.learner.model.logprobs import token_logprobs

VOCABULARY = 151_936
ALL = 2**60


def measure(report: Report, rounds: int, tokens: int, hidden_size: int) -> None:
    blocked, naive = (_ask(form, tokens, 1, hidden_size)["bytes"] for form in ("blocked", "naive"))
    seconds = _ask("both", tokens, rounds, hidden_size)
    name = f"log-probs of {tokens} tokens, {VOCABULARY} words, hidden {hidden_size}"
    report.add(f"{name}: peak of all logits at once", naive / 1e6, "MB")
    report.add(f"{name}: peak by blocks", blocked / 1e6, "MB")
    report.add(f"{name}: peak by blocks", 100 * blocked / naive, "%", at_most=15)
    report.add(f"{name}: all logits at once", seconds["naive"], "s")
    report.add(f"{name}: by blocks", seconds["blocked"], "s")
    report.add(f"{name}: time by blocks over all at once", seconds["ratio"], "x", at_most=1.15)


def _ask(form: str, tokens: int, rounds: int, hidden_size: int) -> dict[str, float]:
    words = [sys.executable, "-m", "learner_steps.logprobs", form, str(tokens), str(rounds), str(hidden_size)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return json.loads(
        subprocess.run(words, cwd=Path(__file__).parents[1], env=environment, check=True, stdout=-1).stdout
    )


def _call(tokens: int, hidden_size: int) -> Callable[[int | None], float]:
    """A function that goes forward and backward with so many logits at once, and gives the seconds."""
    torch.manual_seed(0)
    weight = (0.02 * torch.randn(VOCABULARY, hidden_size)).requires_grad_()
    hidden = torch.randn(tokens, hidden_size, requires_grad=True)
    targets, given = torch.randint(0, VOCABULARY, (tokens,)), torch.randn(tokens)

    def call(most: int | None) -> float:
        weight.grad = hidden.grad = None
        started = time.monotonic()
        logprobs, _ = token_logprobs(hidden, weight, None, targets, 0.9, most)
        logprobs.backward(given)
        return time.monotonic() - started

    return call


def _forget_peak() -> None:
    """Let the peak begin with what is resident now. That of `getrusage` begins with what the parent had, and weights
    take twice their size while they are made."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """Bytes resident at most since."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def main(form: str, tokens: int, rounds: int, hidden_size: int) -> dict[str, float]:
    call, forms = _call(tokens, hidden_size), {"naive": ALL, "blocked": None}
    if form != "both":
        _forget_peak()
        before = _peak_bytes()
        call(forms[form])
        gradients = 4 * hidden_size * (VOCABULARY + tokens)
        return {"bytes": _peak_bytes() - before - gradients}
    times = [{name: call(most) for name, most in forms.items()} for _ in range(rounds + 1)][1:]
    medians = {name: statistics.median(one[name] for one in times) for name in forms}
    return {**medians, "ratio": statistics.median(one["blocked"] / one["naive"] for one in times)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
