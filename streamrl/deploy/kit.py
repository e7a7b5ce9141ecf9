"""All files of a deployment, by target. Pure: text by name, which somebody else writes."""

from collections.abc import Callable, Mapping

from streamrl.config.estimates.model_of import run_facts
from streamrl.config.estimates.resources import estimate
from streamrl.config.problems import ConfigProblems
from streamrl.config.schema.run import Config
from streamrl.deploy.chart import chart_files
from streamrl.deploy.demand import demand
from streamrl.deploy.docker import docker_files
from streamrl.deploy.kuberay import kuberay_files
from streamrl.deploy.refusals import refusals
from streamrl.deploy.settings import Deployment
from streamrl.deploy.slurm import slurm_files


def kit(target: str, config: Config, *, image: str | None, home: str, files: str) -> dict[str, str]:
    """Each file's text by its name below the folder that is written, for a target of `TARGETS`. image: instead of the
    one that the Dockerfile makes. home, files: from that folder to the run's home, and back.

    Raises ConfigProblems: the configuration cannot be deployed there as it is.
    """
    problems = refusals(config, target)
    model, unknown = run_facts(config)
    if problems or unknown:
        raise ConfigProblems((*problems, *unknown))
    needed = demand(config, estimate(config, model))
    return TARGETS[target](Deployment(config=config, demand=needed, image=image, home=home, files=files))


def _kubernetes(deployment: Deployment) -> dict[str, str]:
    """A chart is a run on one node."""
    alone = deployment.demand.rollout is None
    return {**kuberay_files(deployment), **(chart_files(deployment) if alone else {})}


TARGETS: Mapping[str, Callable[[Deployment], dict[str, str]]] = {
    "docker": docker_files,
    "k8s": _kubernetes,
    "slurm": slurm_files,
}
"""By name."""
