"""The samples in `deploy/`: which configuration each folder is made from, and what is made of it."""

from collections.abc import Mapping
from typing import NamedTuple

from support.repository import ROOT

from streamrl.config import Config, load_args
from streamrl.deploy.kit import kit

DEPLOY = ROOT / "deploy"
QUICKSTART, SAMPLE, SEVERAL = (
    str(path) for path in (ROOT / "configs/quickstart.toml", DEPLOY / "sample.toml", DEPLOY / "several-nodes.toml")
)


class Sample(NamedTuple):
    """target: of `streamrl deploy`. overlays: over the quickstart."""

    target: str
    overlays: tuple[str, ...]


SAMPLES: Mapping[str, Sample] = {
    "docker": Sample("docker", (SAMPLE,)),
    "kubernetes": Sample("k8s", (SAMPLE,)),
    "kuberay": Sample("k8s", (SAMPLE, SEVERAL)),
    "slurm": Sample("slurm", (SAMPLE, SEVERAL)),
}
"""By the name of the folder."""


def config_of(overlays: tuple[str, ...] = (), *keys: str) -> Config:
    """The quickstart with these files over it, and single keys."""
    return load_args(QUICKSTART, [*(word for path in overlays for word in ("@", path)), *keys])


def made(folder: str) -> dict[str, str]:
    """Each file of a sample's folder, as it is to be."""
    sample = SAMPLES[folder]
    return kit(sample.target, config_of(sample.overlays), image=None, home="./../..", files=f"deploy/{folder}")


def kit_of(target: str, overlays: tuple[str, ...] = (SAMPLE,), *keys: str, **chosen: str) -> dict[str, str]:
    """Files of a changed sample. chosen: the image, and the ways between files and home."""
    options = {"image": None, "home": "./..", "files": "out", **chosen}
    return kit(target, config_of(overlays, *keys), **options)
