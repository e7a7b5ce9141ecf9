"""What each record is about, and the command that makes it. A record that is not named here has a section too."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """title: of its part of the page. command: makes the record. about: what was measured. picture: its file among the
    records, with the text that stands for it."""

    title: str
    command: str
    about: str
    picture: tuple[str, str] | None = None


SECTIONS: Mapping[str, Section] = {
    "quickstart": Section(
        "The quickstart",
        "make bench-quickstart",
        "`configs/quickstart.toml` as a person runs it: from a random model over a supervised warm-up to the end of "
        "the "
        "reinforcement learning. The score is that of greedy answers to 1,000 held-out prompts. Memory is PSS, in "
        "which "
        "a page that n processes share counts 1/n in each, summed over all processes of the run.",
    ),
    "ppo-quickstart": Section(
        "The quickstart by PPO with a critic",
        "make bench-quickstart CONFIG=ppo-quickstart.toml",
        "The same task with a second model that estimates values.",
    ),
    "e2e": Section(
        "Against TRL",
        "make bench-e2e",
        "The quickstart's model, prompts and batch in TRL's `GRPOTrainer` and in streamrl. First one training of each "
        "side at each of three learning rates; then trainings of both in turns, each at the rate that ended highest, "
        "for the rollouts per second. One scorer judges both.",
        ("e2e-2cpu.svg", "held-out score against rollouts, of streamrl and of TRL at three rates"),
    ),
    "async": Section(
        "Asynchronous against synchronous",
        "make bench-async",
        "The run's own synchronous loop (staleness 0, drained updates) against bounds of 1 to 8 steps, under a heavy "
        "tail of lengths.",
    ),
    "learning": Section(
        "What staleness costs in learning",
        "make bench-learning",
        "The held-out score after equal samples, by the bound of staleness and the correction, for two tasks; each "
        "figure "
        "is the mean of three seeds. [Staleness](staleness.md#what-staleness-costs-in-learning) discusses it. The "
        "times "
        "of these runs are not to be compared: other programs ran beside them.",
    ),
    "algorithms": Section(
        "Every advantage, loss and correction on a small task",
        "make bench-algorithms",
        "The mean reward of the last steps less that of the first ones, over three seeds. The reward is the share of "
        "right "
        "tokens, 1/8 by chance.",
    ),
    "queue": Section(
        "The replay queue",
        "make bench-queue",
        "Records of 1,280 tokens through accept, score, lease, read and commit. `disk` and `memory` are levels of "
        "`queue.durability`. A figure is the median of five rounds.",
    ),
    "weights": Section(
        "Weights",
        "make bench-weights",
        "Versions of a model of 459 MB in float32 through shared memory, the updates of a run, and deltas of 500 MB "
        "between "
        "two versions.",
    ),
    "learner": Section(
        "The learner",
        "make bench-learner",
        "A step on 64 rows of 32 to 512 tokens, packed and padded, with equal loss; and log-probs over a large "
        "vocabulary, computed by blocks and all at once.",
    ),
    "engine": Section(
        "The torch engine",
        "make bench-engine",
        "The embedded engine, batch-invariant and with log-probs, against `transformers.generate` on one thread.",
    ),
    "data": Section(
        "Data and rewards",
        "make bench-data",
        "Rows of short JSONL, prepared once and then read in the order of a run, by one process; and scores by two "
        "children of the reward stage, expressions by `math-verify`.",
    ),
    "gpu-h100": Section(
        "One H100",
        "make bench-gpu",
        "Engine, learner and a whole run on one GPU, in bfloat16, with random weights of Qwen3's shapes. MFU counts "
        "the arithmetic that the model needs, 6 operations for each parameter and token, those of frozen ones too, and "
        "attention; not what is computed again. The rows of the 8B shape are of a call of the same command an hour "
        "before. The whole run was cut by the time limit that its part had then, behind its last step.",
    ),
    "service": Section(
        "The gateway",
        "make bench-service",
        "A live run's gateway under load, on the same two cores as the run, and against a Ray Serve application that "
        "streams the same.",
    ),
    "page": Section(
        "The page",
        "make bench-page",
        "The page of a run with 10,000 steps behind it, 100 replicas and ten more steps a second, in a headless "
        "Chromium "
        "on the same two cores.",
    ),
}


def section_of(name: str) -> Section:
    """Of the record with this name."""
    return SECTIONS.get(name, Section(name.capitalize(), f"make bench-{name}", ""))
