"""The tables of `rollout`: the replicas that generate, how many there are, and how their engine samples."""

from typing import Annotated, Literal

from msgspec import Meta, field

from streamrl.config.schema.table import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Share, Table

SERVER_ENGINES = ("vllm", "sglang")
"""Values of `rollout.engine` that are processes of their own."""


class SamplingConfig(Table, frozen=True):
    """How tokens are drawn in the stream; evaluation is greedy whatever stands here."""

    temperature: NonNegativeFloat = 1.0
    """Divides the logits. 0 is greedy, which leaves a group nothing to compare."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Smallest set of tokens with this probability; 1 switches it off."""
    top_k: NonNegative = 0
    """Number of likeliest tokens; 0 switches it off."""
    min_p: Fraction = 0.0
    """Least probability, as a share of the likeliest token's; 0 switches it off."""
    max_new_tokens: Positive = 16
    """Maximum length of a completion in tokens, its end token included."""


class ScriptedConfig(Table, frozen=True):
    """The scripted engine: deterministic completions, faults on demand. For tests and for the simulator."""

    latency_steps: Positive = 4
    """Mean engine steps a rollout takes; lengths are drawn from the rollout's own seed."""
    step_s: NonNegativeFloat = 0.0
    """Seconds that a step takes at least, as the steps of a model do."""
    heavy_tail: NonNegativeFloat = 0.0
    """Sigma of lognormal lengths; 0 makes all equal."""
    error_rate: Fraction = 0.0
    """Share of rollouts that end as `error`."""
    nan_rate: Fraction = 0.0
    """Share of rollouts that carry a NaN log-prob."""
    hang_rate: Fraction = 0.0
    """Share of rollouts that never end: they keep their slots and sample nothing."""
    logprob_bias: float = 0.0
    """Added to each log-prob, as a mismatched engine would."""
    biased_replica: NonNegative | None = None
    """Number of the only replica that has `logprob_bias`, as one that drifts; all have it when absent."""


class ServerConfig(Table, frozen=True):
    """The server of an engine that is one (`vllm`, `sglang`); the other engines have none."""

    python: str | None = None
    """Python of the server's environment. `.venvs/<engine>/bin/python`, as `make engines` makes it, when absent."""
    endpoint: str | None = None
    """`http://127.0.0.1:PORT` of a server that runs already, for one replica alone. It must hold the same model and be
    started as a replica would start it. Each replica starts a server of its own, and ends it, when absent."""
    tensor_parallel: Positive = 1
    """Devices that one server spreads the model over."""
    quantization: str | None = None
    """The server's own name of the number format that it serves weights in; that of the model when absent."""
    args: tuple[str, ...] = ()
    """Further arguments of the server's command line, behind those that streamrl gives. Refused are those that would
    open the server to others, or break what it promises of log-probs and versions."""


class AutoscalingConfig(Table, frozen=True):
    """How many replicas there are, by who waits for whom, while the run trains (docs/guides/scaling.md). The
    keys are those of Ray Serve's autoscaler."""

    min_replicas: Positive = 1
    """Minimum number of replicas; `rollout.replicas`, the initial number, is at least this."""
    max_replicas: Positive | None = None
    """Maximum number of replicas. No autoscaling when absent."""
    target_ongoing_requests: PositiveFloat = 2.0
    """Requests of clients that run or wait at once, for each replica, beyond which there are to be more replicas.
    Rollouts of the training do not count."""
    upscale_delay_s: NonNegativeFloat = 30.0
    """Seconds for which more must have been worth having, without a break, before they are started."""
    downscale_delay_s: NonNegativeFloat = 600.0
    """Seconds for which fewer must have been enough, without a break, before one is let go."""

    @property
    def enabled(self) -> bool:
        return self.max_replicas is not None


class RolloutConfig(Table, frozen=True):
    """The replicas that generate."""

    replicas: Positive = 1
    """Number of engines, each in its own process. With `autoscaling`, the initial number."""
    resources: dict[str, PositiveFloat] | None = None
    """What each replica takes of its node, by Ray's names (`CPU` and `GPU` too), and so the nodes of a cluster that it
    may run on: `{ rollout-node = 1 }`. When absent, replicas run on the run's own node, as all other parts do."""
    placement: Literal["spread", "pack"] = "spread"
    """Of the nodes that have `resources` free: `spread` takes as many as there are, `pack` as few."""
    engine: Literal["torch", "vllm", "sglang", "scripted"] = "torch"
    """`torch` runs the model in process; `vllm` and `sglang` are servers, in environments of their own; `scripted`
    draws tokens without a model, for tests."""
    group_size: Positive = 8
    """Rollouts of one prompt."""
    slots: Positive = 64
    """Maximum number of requests that one replica decodes at once."""
    update_mode: Literal["keep", "recompute", "drain"] = "keep"
    """What happens to requests in flight when a version arrives."""
    deterministic: bool | None = None
    """A request's ids and log-probs do not depend on what shares its batch. `max_staleness = 0`
    requires it. When absent: true for the engines of this process on a CPU; false on a GPU, where a step takes half as
    long again, and for a server."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the engine computes."""
    gpu_share: Share = 1.0
    """With `cuda`: how much of its GPU a replica takes of what Ray gives away; with 0.5 two are on one. Memory is not
    divided by it. With `resources` it is said there, as `GPU`."""
    threads: Positive = 1
    """Intra-op threads of each replica's engine."""
    kv_bytes: Positive = 256 * 2**20
    """Size of one replica's KV cache, in bytes."""
    journal_every_tokens: NonNegative = 64
    """Tokens of a running rollout after which they are written to disk, so that generation goes on from them when the
    replica dies; at most twice as many are sampled again then. Rollouts that are shorter cost nothing; of episodes
    each turn that has ended is written too. 0 switches it off."""
    quarantine_after: Positive = 3
    """Groups of one prompt of the task that could not be scored, or that the engine refused, over all data passes and
    resumes, after which it is started no more (docs/guides/rewards.md). A prompt of a client is never tried again."""
    autoscaling: AutoscalingConfig = field(default_factory=AutoscalingConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    scripted: ScriptedConfig = field(default_factory=ScriptedConfig)

    @property
    def most_replicas(self) -> int:
        """As many as there may ever be, unless a person asks for more."""
        return self.autoscaling.max_replicas or self.replicas

    @property
    def is_server(self) -> bool:
        """Whether the engine is a server process."""
        return self.engine in SERVER_ENGINES

    @property
    def batch_invariant(self) -> bool:
        """What `deterministic` says, or its default."""
        if self.deterministic is not None:
            return self.deterministic
        return not self.is_server and self.device == "cpu"

    @property
    def keeps_rows_apart(self) -> bool:
        """Whether products on a CPU are to keep each row independent of the others."""
        return self.engine == "torch" and self.device == "cpu" and self.batch_invariant
