"""The rules between the keys of `[learner.algorithm]`: combinations that say one thing and do another. Pure: a
configuration in, problems out, as in `rules`."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.rules.learner.reference import REFERENCE_RULES
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

ROW_LOSSES = ("gspo", "gmpo")
"""As `streamrl.algorithms.losses` has them, which needs torch."""

MASKS = ("icepop", "mis")
"""Corrections that make the weight 0 beyond a bound, and so reject."""

WITHOUT_GROUPS = ("reinforce_pp", "gae")
"""Advantages that compare a rollout with the batch, or with a critic's values, and not with its group."""

TEACHER_LOSSES = ("opd",)
"""As `streamrl.algorithms.losses` has them: advantages have no part."""

_HERE = "learner.algorithm"
_SEES_DISTANCE = {"least_effective_share": "most_mismatch_kl", "pause_effective_share": "pause_mismatch_kl"}
"""Of each bound of the guard of weights that of the guard of the distance."""
_COST = {
    "gae": "a model would be trained to make them",
    "prime": "a model would be trained to make them",
    "remax": "a rollout of each group would be generated greedily to make them",
    "gdpo": "a score without a component would fail for them",
}
"""What an advantage takes that is not there already."""


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


def advantages_are_used(config: Config) -> Iterator[Problem]:
    """What an advantage takes would be taken for nothing."""
    algorithm, buffer = config.learner.algorithm, config.learner.overlong.buffer
    if algorithm.loss not in TEACHER_LOSSES:
        return
    unused = f'advantages have no part in "{algorithm.loss}"'
    if algorithm.advantage in _COST:
        what = f'{unused}, and {_COST[algorithm.advantage]}; set another loss ("ppo"), or leave this key out'
        yield _problem("advantage", what, algorithm.advantage, "loss")
    if buffer:
        what = f'{unused}, and a penalty is in nothing else; set another loss ("ppo"), or 0'
        yield Problem(key="learner.overlong.buffer", what=what, given=str(buffer), involves=(f"{_HERE}.loss",))


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
    algorithm = config.learner.algorithm
    early = "the run would pause before it warns"
    least, pause = algorithm.least_effective_share, algorithm.pause_effective_share
    if pause > least:
        what = f"{early}, at least_effective_share = {least:g}; set at most that"
        yield _problem("pause_effective_share", what, pause, "least_effective_share")
    most, far = algorithm.most_mismatch_kl, algorithm.pause_mismatch_kl
    if far is not None and most is None:
        yield _problem("pause_mismatch_kl", f"{early}; set most_mismatch_kl too, to at most this", far)
    elif far is not None and most is not None and far < most:
        what = f"{early}, at most_mismatch_kl = {most:g}; set at least that"
        yield _problem("pause_mismatch_kl", what, far, "most_mismatch_kl")


def guard_sees_weights(config: Config) -> Iterator[Problem]:
    """Weights that are all equal have the whole share, however far the rows are."""
    algorithm = config.learner.algorithm
    equal = {"correction": algorithm.correction == "none", "proximal": algorithm.proximal == "rollout"}
    names = [name for name, holds in equal.items() if holds]
    if not names or algorithm.rejection.measure != "none":
        return
    cause = f'{names[0]} = "{getattr(algorithm, names[0])}"'
    for key, instead in _SEES_DISTANCE.items():
        if share := getattr(algorithm, key):
            what = (
                f"under {cause} every weight is 1, and so is their share, which never falls under it; set {instead} in "
                "its place, which looks at the distance itself, or have something weighed or rejected"
            )
            yield _problem(key, what, share, names[0])


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
    if algorithm.loss == "gspo" and algorithm.correction in MASKS and algorithm.correction_level == "token":
        what = (
            f'token by token "{algorithm.correction}" rejects, and the ratio of "gspo" is the row\'s, with the '
            'rejected tokens in it; set "tis", or correction_level = "sequence" or "geometric"'
        )
        yield _problem("correction", what, algorithm.correction, "correction_level", "loss")
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
    advantages_are_used,
    mini_batches_have_groups,
    price_needs_a_distance,
    dual_clip,
    covariance_band,
    correction_bounds,
    guard_warns_first,
    guard_sees_weights,
    rejection_bounds,
    rows_are_whole,
    *REFERENCE_RULES,
)
