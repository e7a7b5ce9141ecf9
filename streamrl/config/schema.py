"""The shape of a configuration: one frozen struct per TOML table, each key with its meaning and its range.

Nothing heavy is imported here: `streamrl check` must answer in a moment. What a type or a range cannot say is in
`rules`; where a value came from (file and line) is in `load`. Derived quantities are properties, not keys.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Meta(gt=0.0)]
NonNegativeFloat = Annotated[float, Meta(ge=0.0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table."""


class TaskConfig(Table):
    name: str = "arithmetic"
    """A built-in task, or `module:Class` of one's own."""
    held_out: Fraction = 0.1
    """Share of the task's items kept for evaluation, by a fixed digest; never trained on."""


class ModelConfig(Table):
    preset: str | None = None
    """A model made from nothing by name. Exactly one of `preset` and `path`."""
    path: str | None = None
    """A Hugging Face model folder (config, safetensors, tokenizer)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of weights and activations, in the learner and in the engine."""


class WarmupConfig(Table):
    """Supervised warm-up on the task's own demonstrations, before the stream starts. `max_steps = 0` skips it."""

    max_steps: NonNegative = 0
    batch_size: Positive = 256
    """Demonstrations a step."""
    lr: PositiveFloat = 1e-3
    """Peak rate; it decays linearly to a tenth over `max_steps`."""
    target_score: Fraction = 0.4
    """Greedy score, on training items held apart from the update, at which the warm-up stops."""
    eval_every: Positive = 10
    """Steps between two looks at the score."""


class SamplingConfig(Table):
    temperature: NonNegativeFloat = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: NonNegative = 0
    """0 switches it off."""
    min_p: Fraction = 0.0
    max_new_tokens: Positive = 16


class ScriptedConfig(Table):
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


class RolloutConfig(Table):
    replicas: Positive = 1
    engine: Literal["torch", "scripted"] = "torch"
    group_size: Positive = 8
    """Rollouts of one prompt."""
    slots: Positive = 64
    """Requests that one replica decodes at once."""
    update_mode: Literal["keep", "recompute", "drain"] = "keep"
    """What happens to requests in flight when a version arrives."""
    deterministic: bool = True
    """A request's ids and log-probs do not depend on what shares its batch. Required for `max_staleness = 0`."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Positive = 1
    """Intra-op threads of one replica's engine."""
    kv_bytes: Positive = 256 * 2**20
    """Bytes that one replica's KV cache may take."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    scripted: ScriptedConfig = field(default_factory=ScriptedConfig)


class RewardConfig(Table):
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


class OptimizerConfig(Table):
    lr: NonNegativeFloat = 1e-6
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    warmup_steps: NonNegative = 10
    decay: Literal["constant", "linear", "cosine"] = "linear"
    min_lr_ratio: Fraction = 0.1
    """Rate at the last step, as a share of `lr`."""


class AlgorithmConfig(Table):
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    loss: Literal["ppo"] = "ppo"
    clip_low: NonNegativeFloat = 0.2
    clip_high: NonNegativeFloat = 0.28
    correction: Literal["none", "tis"] = "tis"
    """Weight for the distance between the policy that sampled and the policy that is trained."""
    tis_cap: PositiveFloat = 2.0
    """Upper bound of the truncated importance weight."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"] = "token_mean"


class LearnerConfig(Table):
    steps: Positive = 100
    num_workers: Positive = 1
    """FSDP2 ranks."""
    groups_per_step: Positive = 8
    max_staleness: NonNegative = 2
    """Steps between the oldest token of a rollout and the step that trains on it, at most."""
    late: Literal["wait", "drop", "reissue"] = "wait"
    """What to do when a group that is still running must be in this batch to keep the bound."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Positive = 1
    """Intra-op threads of one rank."""
    micro_batch_tokens: Positive = 16384
    """Tokens of one packed forward and backward."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)


class CheckpointConfig(Table):
    every: Positive = 50
    """Steps between two checkpoints; the last step always has one."""
    keep: Positive = 2
    """Checkpoints kept; an older one goes only after a newer one is verified."""


class EvalConfig(Table):
    every: Positive = 100
    """Steps between two evaluations beside the stream; before and after are always scored."""
    max_items: NonNegative = 0
    """Held-out items scored; 0 takes all."""


class QueueConfig(Table):
    durability: Literal["disk", "memory"] = "disk"
    """`disk`: acknowledged rows survive a `kill -9`. `memory`: they survive a process, not the machine."""
    commit_interval_ms: NonNegativeFloat = 5.0
    """Group commit: rows that arrive within it share one sync to disk."""
    segment_bytes: Positive = 16 * 2**20
    byte_budget: Positive = 2 * 2**30
    """Bytes of rows waiting or not yet covered by a checkpoint."""


class DeadlineConfig(Table):
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
    stop_s: PositiveFloat = 10.0
    """From the order to stop to the last process gone."""


class RayConfig(Table):
    address: str = "local"
    """`local` starts a Ray of its own, on loopback, with a token; else the address of a cluster."""
    num_cpus: Positive | None = None
    """CPUs that a local Ray offers; all of the machine's when absent."""
    object_store_bytes: Annotated[int, Meta(ge=78643200)] = 100 * 2**20
    """Ray's own shared memory; streamrl's data does not pass through it."""


class ObserveConfig(Table):
    trace: bool = True
    """Write a Chrome trace of every span (opens in Perfetto)."""
    tensorboard: bool = False
    """Also write TensorBoard event files (extra `tensorboard`)."""


class Config(Table):
    name: Name = "run"
    """Name of the run; its folder is `<runs>/<name>`."""
    runs: str = "runs"
    """Folder of run folders."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)

    @property
    def rollouts_per_step(self) -> int:
        return self.learner.groups_per_step * self.rollout.group_size

    @property
    def total_groups(self) -> int:
        """Groups that the whole run trains on."""
        return self.learner.steps * self.learner.groups_per_step
