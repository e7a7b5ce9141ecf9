"""The rules about the policy that the trained one is held to, `[learner.algorithm.reference]`, and about where the
distance is paid. Pure but for a look at the folder that is named: a configuration in, problems out, as in `rules`."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from streamrl.config.estimates.model_facts import read_folder
from streamrl.config.problems import Problem
from streamrl.config.schema.algorithm import ReferenceConfig
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_HERE = "learner.algorithm"
_TABLE = f"{_HERE}.reference"
_OF_KIND = {"path": "path", "every": "average", "decay": "average"}


def reference_is_used(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if not algorithm.has_reference and algorithm.reference.kind != "initial":
        what = "nothing asks the reference: set learner.algorithm.kl_coef, or leave it out"
        yield _problem("reference.kind", what, algorithm.reference.kind, "kl_coef")
    if algorithm.kl_coef == 0.0 and algorithm.kl_in != "loss":
        yield _problem("kl_in", "nothing is paid: set learner.algorithm.kl_coef, or leave it out", "reward", "kl_coef")


def keys_of_the_kind(config: Config) -> Iterator[Problem]:
    reference, default = config.learner.algorithm.reference, ReferenceConfig()
    for name, kind in _OF_KIND.items():
        value = getattr(reference, name)
        if reference.kind != kind and value != getattr(default, name):
            what = f'the reference is "{reference.kind}", which has no use for it; set kind = "{kind}", or leave it out'
            yield _problem(f"reference.{name}", what, value, "reference.kind")


def reference_folder(config: Config) -> Iterator[Problem]:
    reference = config.learner.algorithm.reference
    if reference.kind != "path":
        return
    if reference.path is None:
        yield _problem("reference.kind", "it says not which: set learner.algorithm.reference.path", "path")
        return
    for problem in read_folder(Path(reference.path).expanduser())[1]:
        yield msgspec.structs.replace(problem, key=f"{_TABLE}.path")


def average_of_all_weights(config: Config) -> Iterator[Problem]:
    if config.learner.algorithm.reference.kind == "average" and config.learner.lora.rank:
        what = 'of adapters there is no average; set "initial" or "path", or train all weights'
        yield Problem(key=f"{_TABLE}.kind", what=what, given=quoted("average"), involves=("learner.lora.rank",))


def estimator_of_the_place(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if algorithm.kl_in_loss and algorithm.kl_estimator == "k1":
        what = 'as a loss its gradient is 0 in expectation, so it only adds noise; set "k1+", or kl_in = "reward"'
        yield _problem("kl_estimator", what, "k1", "kl_in")
    elif algorithm.kl_in_reward and algorithm.kl_estimator.endswith("+"):
        what = f'a reward has no gradient that the plus would change; set "{algorithm.kl_estimator[:-1]}"'
        yield _problem("kl_estimator", what, algorithm.kl_estimator, "kl_in")
    elif algorithm.kl_in_reward and algorithm.advantage == "maxrl":
        what = '"maxrl" takes no reward below 0, which one less a divergence may be; set "loss"'
        yield _problem("kl_in", what, "reward", "advantage")
    elif algorithm.kl_in_reward and algorithm.has_implicit_rewards:
        what = '"prime" learns rewards from 0 to 1, and one less a divergence may be below; set "loss"'
        yield _problem("kl_in", what, "reward", "advantage")


def teacher(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if algorithm.loss != "opd":
        return
    if algorithm.reference.kind != "path":
        what = '"opd" learns from a teacher; set "path", and learner.algorithm.reference.path'
        yield _problem("reference.kind", what, algorithm.reference.kind, "loss")
    if algorithm.kl_coef > 0.0:
        what = '"opd" is the divergence from the reference itself; leave it out, or take another loss'
        yield _problem("kl_coef", what, algorithm.kl_coef, "loss")


def _problem(key: str, what: str, given: object, *involves: str) -> Problem:
    others = tuple(f"{_HERE}.{name}" for name in involves)
    return Problem(key=f"{_HERE}.{key}", what=what, given=quoted(given), involves=others)


REFERENCE_RULES = (
    reference_is_used,
    keys_of_the_kind,
    reference_folder,
    average_of_all_weights,
    estimator_of_the_place,
    teacher,
)
