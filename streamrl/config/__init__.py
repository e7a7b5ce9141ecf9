"""Configuration: `schema` is its shape, `load` reads it, `rules` and `capacity` hold what spans several keys,
`resources` weighs it against the machine. Its folders import each other, `streamrl.observability` and
`streamrl.storage`.
No heavy library comes in: `streamrl check` answers at once.

    config = load_args("run.toml", ["@", "more.toml", "--learner.steps", "10"])
    problems = check_resources(config)

`load_args` raises ConfigProblems (exit code 2); raise ResourceProblems (exit code 3) with the others.
"""

from streamrl.config.estimates.resources import check_resources
from streamrl.config.estimates.stores import check_stores
from streamrl.config.estimates.trackers import check_trackers
from streamrl.config.loading.dump import diff, dump
from streamrl.config.loading.load import load, load_args
from streamrl.config.problems import ConfigProblems, Problem, ResourceProblems
from streamrl.config.schema.run import Config

__all__ = [
    "Config",
    "ConfigProblems",
    "Problem",
    "ResourceProblems",
    "check_resources",
    "check_stores",
    "check_trackers",
    "diff",
    "dump",
    "load",
    "load_args",
]
