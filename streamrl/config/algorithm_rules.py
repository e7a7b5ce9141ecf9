"""The rules between the keys of `[learner.algorithm]`: combinations that say one thing and do another. Pure: a
configuration in, problems out, as in `rules`."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.reference_rules import REFERENCE_RULES
from streamrl.config.schema import Config
from streamrl.config.toml_text import quoted

ROW_LOSSES = ("gspo", "gmpo")
"""As `streamrl.algorithms.losses` has them, which needs torch."""

WITHOUT_GROUPS = ("reinforce_pp", "gae")
"""Advantages that compare a rollout with the batch, or with a critic's values, and not with its group."""

TEACHER_LOSSES = ("opd",)
"""As `streamrl.algorithms.losses` has them: advantages have no part."""

_HERE = "learner.algorithm"


def varied_samples(config: Config) -> Iterator[Problem]:
    advantage = config.learner.algorithm.advantage
    involves = (f"{_HERE}.advantage",)
    if config.rollout.sampling.temperature == 0.0:
        what = (
            f'greedy rollouts of one prompt are all equal, and "{advantage}" learns from their differences; '
            "set a temperature above 0 (evaluation is greedy in any case)"
        )
        yield Problem(key="rollout.sampling.temperature", what=what, given="0", involves=involves)
    compares = advantage not in WITHOUT_GROUPS and config.learner.algorithm.loss not in TEACHER_LOSSES
    if config.rollout.group_size < 2 and compares:
        what = f'"{advantage}" compares the rollouts of one prompt; set at least 2'
        yield Problem(key="rollout.group_size", what=what, given=str(config.rollout.group_size), involves=involves)


def reinforce_has_no_ratio(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if algorithm.loss in ("reinforce", "opd") and algorithm.proximal != "recompute":
        what = (
            f'"{algorithm.loss}" has no ratio that would cover a part of the way from the sampling policy; set '
            '"recompute"'
        )
        yield _problem("proximal", what, algorithm.proximal, "loss")


def reinforce_goes_once(config: Config) -> Iterator[Problem]:
    learner = config.learner
    if learner.algorithm.loss == "reinforce" and learner.ppo_epochs > 1:
        what = '"reinforce" has nothing that holds it to the policy that sampled; set 1, or a loss with a ratio'
        involves = (f"{_HERE}.loss",)
        yield Problem(key="learner.ppo_epochs", what=what, given=str(learner.ppo_epochs), involves=involves)


def mini_batches_have_groups(config: Config) -> Iterator[Problem]:
    learner = config.learner
    if learner.mini_batches > learner.groups_per_step:
        what = f"groups are never divided, and a step has {learner.groups_per_step}; set at most as many"
        involves = ("learner.groups_per_step",)
        yield Problem(key="learner.mini_batches", what=what, given=str(learner.mini_batches), involves=involves)


def price_needs_a_distance(config: Config) -> Iterator[Problem]:
    algorithm, updates = config.learner.algorithm, config.learner.ppo_epochs * config.learner.mini_batches
    if algorithm.loss == "kl_cov" and algorithm.proximal == "recompute" and updates == 1:
        what = (
            'the price of "kl_cov" is of the distance from it, which is 0 in the one update of a step; set '
            '"interpolate" or "rollout", or learner.mini_batches'
        )
        yield _problem("proximal", what, algorithm.proximal, "loss")


def dual_clip(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if algorithm.dual_clip is None:
        return
    if algorithm.loss != "ppo":
        what = f'only "ppo" has a second bound, and the loss is "{algorithm.loss}"; leave this key out'
        yield _problem("dual_clip", what, algorithm.dual_clip, "loss")
    elif algorithm.dual_clip <= 1.0 + algorithm.clip_high:
        what = (
            f"the second bound lies within the first, 1 + clip_high = {1.0 + algorithm.clip_high:g}; set more than it"
        )
        yield _problem("dual_clip", what, algorithm.dual_clip, "clip_high")


def covariance_band(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if algorithm.loss == "clip_cov" and algorithm.cov_low >= algorithm.cov_high:
        what = f"no covariance lies above it and below cov_high = {algorithm.cov_high:g}; set less"
        yield _problem("cov_low", what, algorithm.cov_low, "cov_high")


def correction_bounds(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if algorithm.correction == "icepop" and algorithm.correction_low >= algorithm.tis_cap:
        what = f"no weight lies between it and tis_cap = {algorithm.tis_cap:g}; set less"
        yield _problem("correction_low", what, algorithm.correction_low, "tis_cap")


def guard_warns_first(config: Config) -> Iterator[Problem]:
    least, pause = config.learner.algorithm.least_effective_share, config.learner.algorithm.pause_effective_share
    if pause > least:
        what = f"the run would pause before it warns, at least_effective_share = {least:g}; set at most that"
        yield _problem("pause_effective_share", what, pause, "least_effective_share")


def rejection_bounds(config: Config) -> Iterator[Problem]:
    rejection = config.learner.algorithm.rejection
    low, high = rejection.low, rejection.high
    if rejection.measure == "none":
        for name, value in (("low", low), ("high", high)):
            if value is not None:
                what = (
                    'nothing is measured that it could bound; set "ratio", "k1", "k2" or "k3", or leave the bound out'
                )
                yield _problem("rejection.measure", what, "none", f"rejection.{name}")
    elif low is None and high is None:
        what = "without a bound nothing is ever rejected; set learner.algorithm.rejection.low or high"
        yield _problem("rejection.measure", what, rejection.measure)
    elif low is not None and high is not None and low >= high:
        what = f"nothing lies between it and high = {high:g}; set less"
        yield _problem("rejection.low", what, low, "rejection.high")
    if rejection.measure in ("ratio", "k2", "k3") and high is not None and high <= 0.0:
        what = f'"{rejection.measure}" is never below 0, so all is rejected; set more than 0'
        yield _problem("rejection.high", what, high, "rejection.measure")


def rows_are_whole(config: Config) -> Iterator[Problem]:
    """The ratio of a row loss has all its tokens in it: none can be left out of it or weighed by itself."""
    algorithm = config.learner.algorithm
    if algorithm.loss not in ROW_LOSSES:
        return
    way_out = 'set "sequence" or "geometric"'
    if algorithm.rejection.measure != "none" and algorithm.rejection.level == "token":
        what = f'the ratio of "{algorithm.loss}" is the row\'s, with the rejected tokens in it; {way_out}'
        yield _problem("rejection.level", what, "token", "loss")
    if algorithm.loss == "gmpo" and algorithm.correction != "none" and algorithm.correction_level == "token":
        what = f'each token of a row has the same loss under "gmpo", whose weight is one number for the row; {way_out}'
        yield _problem("correction_level", what, "token", "loss")


def _problem(key: str, what: str, given: object, *involves: str) -> Problem:
    others = tuple(f"{_HERE}.{name}" for name in involves)
    return Problem(key=f"{_HERE}.{key}", what=what, given=quoted(given), involves=others)


ALGORITHM_RULES = (
    varied_samples,
    reinforce_has_no_ratio,
    reinforce_goes_once,
    mini_batches_have_groups,
    price_needs_a_distance,
    dual_clip,
    covariance_band,
    correction_bounds,
    guard_warns_first,
    rejection_bounds,
    rows_are_whole,
    *REFERENCE_RULES,
)
