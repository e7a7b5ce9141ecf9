"""The tables of `learner`: how the stage that trains does it, its optimizer, and its algorithm."""

from typing import Annotated, Literal

from msgspec import Meta, field

from streamrl.config.table import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Table


class OptimizerConfig(Table, frozen=True):
    """AdamW and its rate."""

    lr: NonNegativeFloat = 1e-6
    """Peak rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay of the first and of the second moment, each below 1."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled, times the rate."""
    max_grad_norm: PositiveFloat = 1.0
    """The global gradient norm is clipped to it."""
    warmup_steps: NonNegative = 10
    """Steps over which the rate rises linearly to `lr`."""
    decay: Literal["constant", "linear", "cosine"] = "linear"
    """Course of the rate after that, to the last step."""
    min_lr_ratio: Fraction = 0.1
    """Rate at the last step, as a share of `lr`."""


class AlgorithmConfig(Table, frozen=True):
    """From rewards to a loss: advantage, proximal, correction, loss and aggregation are independent choices."""

    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """How a rollout is judged against the others of its group."""
    loss: Literal["ppo", "reinforce"] = "ppo"
    """`ppo` is the clipped surrogate. `reinforce` is the plain policy gradient, without ratio and clip: only
    `correction` stands between it and rows of older versions, so it needs `proximal = "recompute"`."""
    clip_low: NonNegativeFloat = 0.2
    """The ratio is clipped below at 1 - `clip_low`; without part under `proximal = "recompute"`, where it is 1."""
    clip_high: NonNegativeFloat = 0.28
    """The ratio is clipped above at 1 + `clip_high`; acts as `clip_low` does."""
    proximal: Literal["recompute", "interpolate", "rollout"] = "interpolate"
    """The policy that the ratio is against, and so what the clip holds the update close to: the one before the step,
    the one that sampled, or between the two by the row's age (A-3PO)."""
    correction: Literal["none", "tis"] = "tis"
    """Weight of a token for the distance from the policy that sampled it to `proximal`."""
    tis_cap: PositiveFloat = 2.0
    """Upper bound of the truncated importance weight."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"] = "token_mean"
    """How the losses of tokens become one number; the denominators are global."""


class LoraConfig(Table, frozen=True):
    """Low-rank adapters: the model's weights stay as they are, and small matrices beside them are trained and published
    (extra `lora`)."""

    rank: NonNegative = 0
    """Inner size of each adapter; 0 trains all weights."""
    alpha: PositiveFloat | None = None
    """The adapters' product counts `alpha / rank` times; twice the rank when absent."""
    targets: tuple[str, ...] | None = None
    """Linear layers of the decoder that get one, by their last name (`q_proj`); all of them when absent."""


class LearnerConfig(Table, frozen=True):
    """The stage that trains; it is the clock of the run."""

    steps: Positive = 100
    """Optimizer steps of the whole run."""
    num_workers: Positive = 1
    """FSDP2 ranks."""
    shares: Positive | None = None
    """Parts that a batch is cut into whatever the number of ranks, a multiple of it; their gradients are added in
    order, so that with 2 one rank and two make equal weights (to the bit, if a rank's part of each parameter is a
    multiple of 8 elements: the optimizer rounds what is over in another way). One for each rank when absent."""
    groups_per_step: Positive = 8
    """Prompts of one step, each with `rollout.group_size` rollouts."""
    max_staleness: NonNegative = 2
    """Steps between the oldest token of a rollout and the step that trains on it, at most."""
    lead: Annotated[float, Meta(ge=1.0)] | None = None
    """Batches that may be ready or running ahead of the learner, less than `max_staleness` would allow: rows wait less,
    so they are fresher than the bound when they are trained on. No further limit when absent."""
    late: Literal["wait", "drop", "reissue"] = "wait"
    """What to do when a group that is still running must be in this batch to keep the bound."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the ranks compute; the process group is gloo on `cpu`, NCCL on `cuda`."""
    threads: Positive = 1
    """Intra-op threads of one rank."""
    micro_batch_tokens: Positive = 16384
    """Tokens of one packed forward and backward."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
