"""A batch script for Slurm: the run's node, and as many with a replica each as the configuration asks for.

The nodes of a job are alike, so each is asked for what the most demanding one needs.
"""

import json
import shlex

from streamrl.deploy.settings import CONFIG_FILE, Deployment, config_text, with_ray
from streamrl.deploy.text import template

SCRIPT = "run.sbatch"
_MIB = 2**20
_NOTICE_S = 30  # more than the run needs: Slurm may send its signal that much late


def slurm_files(deployment: Deployment) -> dict[str, str]:
    """Each file's text by its name."""
    demand = deployment.demand
    nodes = [demand.run, *([demand.rollout] if demand.rollout is not None else [])]
    gpus = max(node.gpus for node in nodes)
    # Of several nodes the script says the address, which is known then.
    config = with_ray(deployment.config, "local" if demand.rollout is None else "auto")
    resources = {} if demand.rollout is None else demand.rollout.resources
    script = template(
        "run.sbatch",
        name=deployment.name,
        nodes=str(1 + demand.rollout_nodes),
        cpus=str(max(node.cpus for node in nodes)),
        memory=str(max(node.memory for node in nodes) // _MIB),
        gpus_line=f"#SBATCH --gpus-per-node={gpus}\n" if gpus else "",
        gpus=str(gpus),
        grace=str(deployment.grace_s + _NOTICE_S),
        script=shlex.quote(f"{deployment.files}/{SCRIPT}"),
        config=shlex.quote(f"{deployment.files}/{CONFIG_FILE}"),
        resources=json.dumps(resources),
        store=str(config.ray.object_store_bytes),
    )
    return {CONFIG_FILE: config_text(config), SCRIPT: script}
