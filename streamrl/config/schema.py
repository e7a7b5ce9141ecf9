"""The shape of a configuration: one frozen struct per TOML table, each key with its meaning and its range.

Nothing heavy is imported here: `streamrl check` must answer in a moment. What a type or a range cannot say is
in `rules`; where a value came from (file and line) is in `load`. Derived quantities are properties, not keys.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from streamrl.config.learner_tables import LearnerConfig
from streamrl.config.table import Fraction, Name, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Table

SERVER_ENGINES = ("vllm", "sglang")
"""Values of `rollout.engine` that are processes of their own."""


class TaskConfig(Table, frozen=True):
    """What the model learns."""

    name: str = "arithmetic"
    """A built-in task, or `module:Class` of one's own."""
    held_out: Fraction = 0.1
    """Share of the task's items kept for evaluation, by a fixed digest; never trained on."""


class ModelConfig(Table, frozen=True):
    """The policy that is trained."""

    preset: str | None = None
    """A model made from nothing by name. Exactly one of `preset` and `path`."""
    path: str | None = None
    """A Hugging Face model folder (config, safetensors, tokenizer)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of weights and activations, in the learner and in the engine."""


class WarmupConfig(Table, frozen=True):
    """Supervised warm-up on the task's own demonstrations, before the stream starts."""

    max_steps: NonNegative = 0
    """Steps at most; 0 skips the warm-up."""
    batch_size: Positive = 256
    """Demonstrations a step."""
    lr: PositiveFloat = 1e-3
    """Peak rate; it decays linearly over `max_steps`."""
    min_lr_ratio: Fraction = 0.1
    """Rate at the last step, as a share of `lr`. A model warmed up at a high rate to the end stands the first updates
    of reinforcement learning better."""
    threads: Positive = 1
    """Intra-op threads of one learner rank during the warm-up, when nobody else computes."""
    target_score: Fraction = 0.4
    """Greedy score, on training items held apart from the update, at which the warm-up stops."""
    eval_every: Positive = 10
    """Steps between two looks at the score."""


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
    """Tokens of a completion at most, its end token included."""


class ScriptedConfig(Table, frozen=True):
    """The scripted engine: deterministic completions, faults on demand. For tests and for the simulator."""

    latency_steps: Positive = 4
    """Mean engine steps a rollout takes; lengths are drawn from the rollout's own seed."""
    heavy_tail: NonNegativeFloat = 0.0
    """Sigma of lognormal lengths; 0 makes all equal."""
    error_rate: Fraction = 0.0
    """Share of rollouts that end as `error`."""
    nan_rate: Fraction = 0.0
    """Share of rollouts that carry a NaN log-prob."""
    logprob_bias: float = 0.0
    """Added to each log-prob, as a mismatched engine would."""


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


class RolloutConfig(Table, frozen=True):
    """The replicas that generate."""

    replicas: Positive = 1
    """Engines, each in a process of its own."""
    resources: dict[str, PositiveFloat] | None = None
    """What each replica takes of its node, by Ray's names (`CPU` and `GPU` too), and so the nodes of a cluster that it
    may run on: `{ rollout-node = 1 }`. When absent, replicas run on the run's own node, as all other parts do."""
    engine: Literal["torch", "vllm", "sglang", "scripted"] = "torch"
    """`torch` runs the model in process; `vllm` and `sglang` are servers, in environments of their own; `scripted`
    draws tokens without a model, for tests."""
    group_size: Positive = 8
    """Rollouts of one prompt."""
    slots: Positive = 64
    """Requests that one replica decodes at once."""
    update_mode: Literal["keep", "recompute", "drain"] = "keep"
    """What happens to requests in flight when a version arrives."""
    deterministic: bool | None = None
    """A request's ids and log-probs do not depend on what shares its batch. `max_staleness = 0`
    requires it. When absent: true where the engine can, false for a server."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the engine computes."""
    threads: Positive = 1
    """Intra-op threads of one replica's engine."""
    kv_bytes: Positive = 256 * 2**20
    """Bytes that one replica's KV cache may take."""
    journal_every_tokens: NonNegative = 64
    """Tokens of a running rollout after which they are written to disk, so that generation goes on from them when the
    replica dies; at most twice as many are sampled again then. Rollouts that are shorter cost nothing. 0 switches it
    off."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    scripted: ScriptedConfig = field(default_factory=ScriptedConfig)

    @property
    def is_server(self) -> bool:
        """Whether the engine is a server process."""
        return self.engine in SERVER_ENGINES

    @property
    def batch_invariant(self) -> bool:
        """What `deterministic` says, or its default."""
        return not self.is_server if self.deterministic is None else self.deterministic


class RewardConfig(Table, frozen=True):
    """The stage that scores each rollout when it ends."""

    function: str = "exact_match"
    """A built-in reward, or `module:function` of one's own."""
    workers: Positive = 1
    """Child processes that score."""
    batch_size: Positive = 512
    """Rollouts that one child scores at once."""
    timeout_s: PositiveFloat = 10.0
    """Wall time for one batch, then for each of its rollouts alone, before the child is killed."""
    memory_bytes: Positive = 2 * 2**30
    """Address space that a child may take."""
    max_failed: Fraction = 0.2
    """Share of failed scores, over a step, at which the run stops and says why."""


class CheckpointConfig(Table, frozen=True):
    """Atomic commits of everything that a resume needs."""

    every: Positive = 50
    """Steps between two checkpoints; the last step always has one."""
    keep: Positive = 2
    """Checkpoints kept; an older one goes only after a newer one is verified."""
    byte_budget: Positive | None = None
    """Bytes of all checkpoints, the one that is being written included: `keep` + 1 of them at least. Room for one more
    when absent. What cannot be read goes first, then the oldest; the newest verified one never."""


class EvalConfig(Table, frozen=True):
    """Greedy scores on the held-out items, under one pinned version."""

    every: Positive = 100
    """Steps between two evaluations beside the stream; before and after are always scored."""
    max_items: NonNegative = 0
    """Held-out items scored; 0 takes all."""
    target_score: Fraction = 0.0
    """The run ends once a version reaches this held-out score, as if the step that is made then was its last; 0 trains
    all steps."""


class QueueConfig(Table, frozen=True):
    """The durable replay queue between the replicas and the learner."""

    durability: Literal["disk", "memory"] = "disk"
    """`disk`: acknowledged rows survive a `kill -9`. `memory`: they survive a process, not the machine."""
    commit_interval_ms: NonNegativeFloat = 5.0
    """Group commit: rows that arrive within it share one sync to disk."""
    segment_bytes: Positive = 16 * 2**20
    """Size of a log file, allocated at once."""
    byte_budget: Positive = 2 * 2**30
    """Bytes of rows waiting or not yet covered by a checkpoint; when trained rows take 70% of it, a checkpoint is taken
    before its time."""
    retain: Literal["all", "covered"] = "all"
    """`all` keeps the rows of the whole run, for `replay` and for queries, as long as `disk_budget` has room for them.
    `covered` removes a log file as soon as no resume can need its rows."""
    disk_budget: Positive = 16 * 2**30
    """Bytes of the log files of completions and scores and of the journals, on each node; beyond it the oldest that no
    resume can need are removed."""
    fetched_bytes: Positive = 2 * 2**30
    """Bytes of the copies of rows that were written on other nodes. Up to `byte_budget` of them outlive their node."""
    min_free_bytes: NonNegative = 256 * 2**20
    """Free bytes of the run folder's disk under which the run pauses: no new groups until there is more again. 0 pauses
    only when the disk is full."""


class WeightsConfig(Table, frozen=True):
    """The versions on their way from the learner to the replicas."""

    byte_budget: Positive | None = None
    """Bytes of shared memory that versions may take, two at least: the learner waits, and says so, until nobody needs
    an older one. Deltas take what is left. Room for 3 + `rollout.replicas` versions when absent, and for two bases
    where they hold adapters."""
    between_nodes: Literal["object_store", "collective", "disk"] = "object_store"
    """How they reach the other nodes of `rollout.resources`; on the run's own node it is shared memory always."""
    delta: bool = True
    """Whether what travels between nodes is the difference to the version before, where that takes fewer bytes."""
    folder: str | None = None
    """Of `between_nodes = "disk"`: a folder that all nodes see, under the same absolute path."""
    collective_backend: Literal["gloo", "nccl"] = "gloo"
    """Of `between_nodes = "collective"`: `nccl` where the learner's node and every other have a GPU."""


class DeadlineConfig(Table, frozen=True):
    """Seconds that the system waits before it fails and says for what."""

    start_s: PositiveFloat = 120.0
    """From the launch of a part to its first sign of life."""
    rollout_s: PositiveFloat = 300.0
    """From the issue of a group to its last rollout's score."""
    update_s: PositiveFloat = 60.0
    """From the publication of a version to a replica's acknowledgement."""
    step_s: PositiveFloat = 600.0
    """One learner step, its wait for data excepted."""
    checkpoint_s: PositiveFloat = 600.0
    """From the snapshot of a checkpoint to its commit."""
    stop_s: PositiveFloat = 10.0
    """From the order to stop to the last process gone."""


class RayConfig(Table, frozen=True):
    """The Ray that the run lives in."""

    address: str = "local"
    """`local` starts a Ray of its own, on loopback, with a token; else the address of a cluster."""
    num_cpus: Positive | None = None
    """CPUs that a local Ray offers; all of the machine's when absent."""
    object_store_bytes: Annotated[int, Meta(ge=78643200)] = 100 * 2**20
    """Ray's own shared memory; streamrl's data does not pass through it."""


class ObserveConfig(Table, frozen=True):
    """What is recorded beside `metrics.jsonl`."""

    trace: bool = True
    """Write a Chrome trace of every span (opens in Perfetto)."""
    log_bytes: Positive = 512 * 2**20
    """Bytes of all that tells of a run: logs, events, metrics, spans and the trace made of them. Each has a share;
    logs and events are rotated, of metrics old lines are thinned out, further spans are dropped and counted."""
    tensorboard: bool = False
    """Also write TensorBoard event files (extra `tensorboard`)."""


class GatewayConfig(Table, frozen=True):
    """The door for clients over HTTP: OpenAI's routes, answered by the replicas beside the stream."""

    enabled: bool = False
    """Whether the run has one."""
    host: str = "127.0.0.1"
    """Address that it listens on. Any but one of this machine's own needs `tls_cert` and `tls_key`, or
    `insecure_bind`."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port that it listens on; 0 takes a free one, which `streamrl status` and `run.json` name."""
    insecure_bind: bool = False
    """Allow a `host` that others reach without TLS: tokens and texts travel as they are."""
    names: tuple[str, ...] = ()
    """Names by which clients reach it, beside `localhost`, `host` and addresses; a request for another one is
    refused."""
    tls_cert: str | None = None
    """PEM file of its certificate."""
    tls_key: str | None = None
    """PEM file of the certificate's key."""
    max_body_bytes: Positive = 2**20
    """Bytes of a request's body."""
    max_completions: Positive = 64
    """Completions that one request may ask for, its prompts times `n`."""
    max_requests: Positive = 1024
    """Requests that are answered at once; further ones are told to come back."""

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None and self.tls_key is not None


class Config(Table, frozen=True):
    """A whole run. Every key has a default but the model."""

    name: Name = "run"
    """Name of the run; its folder is `<runs>/<name>`."""
    runs: str = "runs"
    """Folder of run folders."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Of data order, sampling, warm-up and a preset's first weights."""
    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)

    @property
    def rollouts_per_step(self) -> int:
        return self.learner.groups_per_step * self.rollout.group_size

    @property
    def promise(self) -> str:
        """What `queue.durability` promises in this run, for whoever looks at it."""
        words = {
            "disk": "disk: what was acknowledged survives kill -9 and a power cut",
            "memory": "memory: what was acknowledged survives kill -9, but not a crash of the machine or a power cut",
        }[self.queue.durability]
        if self.rollout.resources is None:
            return words
        return f"{words}; rows of a replica on another node are generated again if that node's disk is lost"

    @property
    def journals_partials(self) -> bool:
        """Whether tokens of running rollouts are written to disk."""
        return 0 < self.rollout.journal_every_tokens < self.rollout.sampling.max_new_tokens

    @property
    def total_groups(self) -> int:
        """Groups that the whole run trains on."""
        return self.learner.steps * self.learner.groups_per_step
