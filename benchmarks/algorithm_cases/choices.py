"""Rows of the algorithms' table for every choice beside advantage and loss: one for each, not one for each combination.

Each is the default configuration (`grpo`, `ppo`, `interpolate`, `tis` token by token) but for what the row is named
after, on ragged rows that a policy sampled which was three steps behind (`stale`). Where a choice could do
nothing and the row would still learn, a further row says that it did something.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from report import Report

from algorithm_cases.ragged import LONGEST
from algorithm_cases.stale import Run, train
from algorithm_cases.task import GROUP_SIZE, PROMPTS, SEEDS
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig, ReferenceConfig, RejectionConfig
from streamrl.config.schema.learner import CriticConfig, LearnerConfig, OptimizerConfig, OverlongConfig
from streamrl.config.schema.rollout import RolloutConfig, SamplingConfig
from streamrl.learner.model.policy import PolicyModel

STEPS = 60
RATE = OptimizerConfig(lr=5e-3, warmup_steps=0)
GAIN = 0.2
"""Wanted, of the mean reward, which is about 0.1 by chance and 1 at best."""
LEVELS = ("token", "sequence", "geometric")
BOUNDS = {"token": (0.75, 1.33), "sequence": (0.6, 1.67), "geometric": (0.85, 1.18)}
"""Of the ratio, so near to 1 that rows of three steps ago go beyond them."""
MEASURES: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "ratio": {"token": (0.6, 1.67), "sequence": (0.5, 2.0), "geometric": (0.8, 1.25)},
    "k1": {"token": (-0.5, 0.5), "sequence": (-0.7, 0.7), "geometric": (-0.22, 0.22)},
    "k2": {"token": (None, 0.12), "sequence": (None, 0.25), "geometric": (None, 0.06)},
    "k3": {"token": (None, 0.12), "sequence": (None, 0.25), "geometric": (None, 0.06)},
}
"""(low, high) by level."""

ONE_GRADIENT = {f"kl {name} in the loss" for name in ("k2", "k1+", "k3+")}
"""Rows that are equal by right: the straight-through forms are there for their values."""

Named = Iterator[tuple[str, Config]]
"""Rows by their names."""


@dataclass(frozen=True, slots=True)
class Acted:
    """What shows that the choices of a family did something: a figure of a run, of which the worst among the family's
    rows is held to a bound."""

    name: str
    unit: str
    of_run: Callable[[Run], float]
    at_least: float | None = None
    at_most: float | None = None

    def add_to(self, report: Report, found: Mapping[str, list[Run]]) -> None:
        worst = min if self.at_least is not None else max
        value = worst(fmean(map(self.of_run, runs)) for runs in found.values())
        report.add(self.name, value, self.unit, at_least=self.at_least, at_most=self.at_most)


ENTROPY = Acted("entropy at the end, with a bonus", "nats", lambda run: run.last("loss/entropy"), at_least=0.7)
"""Without one it is 0.55."""
CUT_OFF = Acted("share of answers cut off at the end, punished", "", lambda run: run.last("cut_off"), at_most=0.75)
"""Unpunished it is 0.87."""


@dataclass(frozen=True, slots=True)
class Family:
    """Choices of one kind: by the name of its row what each changes of the default."""

    choices: dict[str, Config]
    acted: Acted | None = None


def config_of(learner: Mapping[str, object] | None = None, **algorithm: object) -> Config:
    """The default but for some keys of `[learner]` and of `[learner.algorithm]`."""
    given = {"steps": STEPS, "groups_per_step": PROMPTS, "optimizer": RATE, **(learner or {})}
    return Config(
        rollout=RolloutConfig(group_size=GROUP_SIZE, sampling=SamplingConfig(max_new_tokens=LONGEST)),
        learner=LearnerConfig(algorithm=AlgorithmConfig(**algorithm), **given),
    )


def families() -> list[Family]:
    """All rows, in the table's order."""
    return [
        Family(dict(ratios())),
        Family(dict(corrections()), every_run_has("correction/truncated", "weights that a correction bounded")),
        Family(dict(rejections()), every_run_has("correction/rejected", "tokens that were rejected")),
        Family(dict(paid_in_the_loss()), stays_near("the loss")),
        Family(dict(paid_in_the_reward()), stays_near("the reward")),
        Family(dict(paid_by_squares())),
        Family(dict(references())),
        Family(dict(entropy_bonus()), ENTROPY),
        Family(dict(bounds_of_a_loss()), every_run_has("ratio/clip_fraction", "tokens that a loss bounded")),
        Family(dict(critics())),
        Family(dict(aggregations())),
        Family(dict(overlong_penalty()), CUT_OFF),
        Family(dict(without_truncated())),
        Family(dict(several_updates())),
    ]


def every_run_has(metric: str, what: str) -> Acted:
    """A share of tokens, over all steps, that is not next to nothing."""
    return Acted(f"share of {what}, the least of these rows", "", lambda run: run.mean(metric), at_least=0.01)


def stays_near(where: str) -> Acted:
    """Without a price the policy goes 1.5 far."""
    name = f"distance from where it began, paid in {where}, the most of these rows"
    return Acted(name, "nats", lambda run: run.distance, at_most=1.2)


def choices(report: Report, wanted: Callable[[str], bool]) -> None:
    """Rows of all choices whose names are wanted, each the mean over all seeds."""
    everyone: dict[str, list[Run]] = {}
    for family in families():
        found = {name: runs_of(config) for name, config in family.choices.items() if wanted(name)}
        for name, runs in found.items():
            report.add(name, fmean(run.gain for run in runs), "reward", at_least=GAIN)
        if family.acted is not None and found:
            family.acted.add_to(report, found)
        everyone |= found
    if everyone:
        report.add("choices that changed nothing", len(without_effect(everyone)), "", at_most=0)


def without_effect(everyone: Mapping[str, Sequence[Run]]) -> list[str]:
    """Rows whose rewards are to the bit those of a row before: what they are named after did nothing."""
    first: dict[str, str] = {}
    repeated = {name: first.setdefault(repr([run.rewards for run in runs]), name) for name, runs in everyone.items()}
    return [name for name, like in repeated.items() if name != like and not {name, like} <= ONE_GRADIENT]


def runs_of(config: Config) -> list[Run]:
    teacher = teacher_policy() if config.learner.algorithm.reference.kind == "path" else None
    return [train(config, seed, teacher) for seed in SEEDS]


def teacher_policy() -> PolicyModel:
    """One that has learnt the task from another beginning."""
    return train(config_of(), len(SEEDS)).policy


def ratios() -> Named:
    """The second of them is the default, of whose choices none has a row of its own: `token_mean` is one."""
    for name in ("recompute", "interpolate", "rollout"):
        yield f"proximal {name}", config_of(proximal=name)
    yield "correction none", config_of(proximal="recompute", correction="none")


def corrections() -> Named:
    """Around the policy before the step, so that all of the way is the weight's."""
    for name in ("tis", "icepop", "mis"):
        for level in LEVELS:
            low, high = BOUNDS[level]
            bounds = {"tis_cap": high, **({"correction_low": low} if name == "icepop" else {})}
            changed = {"proximal": "recompute", "correction": name, "correction_level": level}
            yield f"correction {name}, {level}", config_of(**changed, **bounds)


def rejections() -> Named:
    """Alone: nothing is weighed."""
    for measure, by_level in MEASURES.items():
        for level, (low, high) in by_level.items():
            rejection = RejectionConfig(measure=measure, level=level, low=low, high=high)
            config = config_of(proximal="recompute", correction="none", rejection=rejection)
            yield f"rejection {measure}, {level}", config


def paid_in_the_loss() -> Named:
    """To the policy that the run began with, as in the reward."""
    for name in ("k2", "k3", "k1+", "k3+"):
        yield f"kl {name} in the loss", config_of(kl_coef=0.3, kl_estimator=name)


def paid_in_the_reward() -> Named:
    """Of rows, and of tokens."""
    paid = {"kl_coef": 0.08, "kl_in": "reward", "kl_estimator": "k1"}
    yield "kl k1 in the reward", config_of(**paid)
    yield "kl k1 in the reward of tokens, gae", config_of(critic(), advantage="gae", **paid)


def paid_by_squares() -> Named:
    """As rewards these push elsewhere than away from the reference, so nearness does not show that they act."""
    for name in ("k2", "k3"):
        yield f"kl {name} in the reward", config_of(kl_coef=0.1, kl_in="reward", kl_estimator=name)


def references() -> Named:
    """The third kind, `initial`, is that of the rows before."""
    for name, settings in (("path", {"path": "given to the run"}), ("average", {"decay": 0.8})):
        yield f"reference {name}", config_of(kl_coef=0.3, reference=ReferenceConfig(kind=name, **settings))


def entropy_bonus() -> Named:
    yield "entropy bonus", config_of(entropy_coef=0.1)


def bounds_of_a_loss() -> Named:
    """Around the policy that sampled, which is where a ratio has a way to go."""
    plain = {"proximal": "rollout", "correction": "none"}
    yield "ppo, dual clip", config_of(dual_clip=1.5, **plain)
    yield "dppo, divergence kl", config_of(loss="dppo", divergence="kl", clip_low=0.05, clip_high=0.05, **plain)


def critics() -> Named:
    yield "gae", config_of(critic(), advantage="gae")
    yield "gae, length_alpha", config_of(critic(length_alpha=2.0), advantage="gae")
    yield "gae, value_lambda", config_of(critic(value_lambda=0.8), advantage="gae")


def critic(**changed: object) -> dict[str, object]:
    return {"critic": CriticConfig(optimizer=RATE, **changed)}


def aggregations() -> Named:
    """All but the default."""
    for name in ("seq_mean_token_mean", "seq_mean_token_sum"):
        yield f"aggregation {name}", config_of(aggregation=name)
    yield "aggregation seq_mean_token_sum_norm", config_of(aggregation="seq_mean_token_sum_norm", horizon=LONGEST)


def overlong_penalty() -> Named:
    yield "overlong penalty", config_of({"overlong": OverlongConfig(buffer=2, penalty=0.3)})


def without_truncated() -> Named:
    yield "overlong, truncated masked", config_of({"overlong": OverlongConfig(mask_truncated=True)})


def several_updates() -> Named:
    rate = OptimizerConfig(lr=RATE.lr / 2, warmup_steps=0)
    yield "2 mini-batches x 2 epochs", config_of({"mini_batches": 2, "ppo_epochs": 2, "optimizer": rate})
