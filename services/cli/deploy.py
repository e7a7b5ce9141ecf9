"""`streamrl deploy`. `main` makes a command of it."""

import json
from pathlib import Path
from typing import Literal

from streamrl.services.cli.options import Flag, Json, Rest


def deploy(
    target: Literal["docker", "k8s", "slurm"],
    config: str,
    *rest: Rest,
    out: str,
    image: str | None = None,
    force: Flag = False,
    as_json: Json = False,
) -> int:
    """Write the files with which a run is started in a container, on Kubernetes or by Slurm, filled in from its
    configuration. Call it in the folder that relative paths of the configuration begin at.

    Parameters
    ----------
    target
        docker: an image and a compose file. k8s: a Helm chart, a RayJob and a RayCluster. slurm: a batch script.
    config
        A TOML file; overlays and keys follow as for `up`.
    out
        The folder to write; it is made when absent.
    image
        The image to start, instead of the one that the Dockerfile makes.
    force
        Write into a folder that has other files in it, and over those of the same names.
    """
    from streamrl.services.commands.deploy import deploy as write

    written = [str(path) for path in write(target, config, rest, Path(out), image=image, force=force)]
    print(json.dumps({"written": written}) if as_json else "\n".join(written))
    return 0
