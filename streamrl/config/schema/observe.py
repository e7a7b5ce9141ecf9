"""The table `[observe]`: what is recorded of a run, and who is told of it."""

from typing import Literal

from streamrl.config.schema.table import Name, NonNegative, Positive, Table

TrackerName = Literal["wandb", "mlflow", "trackio", "swanlab", "tensorboard", "otel"]


class ObserveConfig(Table, frozen=True):
    """What is recorded beside `metrics.jsonl`."""

    trace: bool = True
    """Write a Chrome trace of every span (opens in Perfetto)."""
    log_bytes: Positive = 512 * 2**20
    """Bytes of all that tells of a run: logs, events, metrics, spans and the trace made of them, reports of stacks and
    deaths. Each has a share; logs and events are rotated, of metrics old lines are thinned out, further spans are
    dropped and counted, the oldest reports go."""
    token_bytes: NonNegative = 64 * 2**20
    """Bytes of what the learner keeps of single tokens, for the page: log-prob, entropy, advantage, and what the loss
    made of each, of whole rows with up to 16,384 tokens of each step. The oldest go. 0: nothing is kept."""
    tensorboard: bool = False
    """Also write TensorBoard event files: the same as `tensorboard` among `trackers`."""
    trackers: tuple[TrackerName, ...] = ()
    """Who is told the numbers of each step, each an extra of its own name, in a process of its own. Keys, addresses and
    offline modes are taken from their own variables, as `WANDB_API_KEY` and `MLFLOW_TRACKING_URI`; `otel` is told the
    spans."""
    project: Name = "streamrl"
    """Project, or experiment, that the run belongs to at its trackers."""
    names: Literal["none", "trl", "verl", "prime"] = "none"
    """Whose names of metrics trackers get beside ours, so that dashboards made for those show the run."""

    @property
    def all_trackers(self) -> tuple[str, ...]:
        """Each once, in the order in which they are named."""
        return tuple(dict.fromkeys((*self.trackers, *(["tensorboard"] if self.tensorboard else []))))
