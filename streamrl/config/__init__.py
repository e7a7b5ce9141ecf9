"""Configuration: `schema` is its shape, `load` reads it, `rules` and `capacity` hold what spans several keys,
`resources` weighs it against the machine.

    config = load_args("run.toml", ["@", "more.toml", "--learner.steps", "10"])
    problems = check_resources(config)

`load_args` raises ConfigProblems (exit code 2); raise ResourceProblems (exit code 3) with the others.
"""

from streamrl.config.dump import diff, dump
from streamrl.config.load import load, load_args
from streamrl.config.problems import ConfigProblems, Problem, ResourceProblems
from streamrl.config.resources import check_resources
from streamrl.config.schema import Config

__all__ = [
    "Config",
    "ConfigProblems",
    "Problem",
    "ResourceProblems",
    "check_resources",
    "diff",
    "dump",
    "load",
    "load_args",
]
