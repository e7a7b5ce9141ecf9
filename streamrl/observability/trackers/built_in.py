"""The trackers by name. A class imports its package when it is made, so this module imports none."""

from collections.abc import Callable, Mapping
from typing import Final

from streamrl.observability.trackers.base import TrackedRun, Tracker
from streamrl.observability.trackers.mlflow import MlflowTracker
from streamrl.observability.trackers.otel import OtelTracker
from streamrl.observability.trackers.swanlab import SwanlabTracker
from streamrl.observability.trackers.tensorboard import TensorboardTracker
from streamrl.observability.trackers.trackio import TrackioTracker
from streamrl.observability.trackers.wandb import WandbTracker

TRACKERS: Final[Mapping[str, Callable[[TrackedRun], Tracker]]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
    "swanlab": SwanlabTracker,
    "tensorboard": TensorboardTracker,
    "otel": OtelTracker,
}
