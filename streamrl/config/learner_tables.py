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


class ExecutionConfig(Table, frozen=True):
    """How a forward and backward is computed: what it costs in time and memory, never what it gives beyond rounding."""

    activation_checkpointing: bool = False
    """Keep only the input of each layer, and compute the layer again in the backward: less memory, more time."""
    compile: bool = False
    """Compile the layers with `torch.compile`, all but their attention. The first steps take longer; on a CPU it needs
    a C++ compiler."""
    offload: bool = False
    """Keep parameters, gradients and optimizer states in the CPU's memory, and step there; a layer's parameters are on
    the GPU while it computes. Of use with `learner.device = "cuda"` alone."""


Level = Literal["token", "sequence", "geometric"]


class RejectionConfig(Table, frozen=True):
    """Leaves out what the trained policy is too far from, as it is before the step; whatever `proximal` is. What is
    left out stays in the denominators."""

    measure: Literal["none", "ratio", "k1", "k2", "k3"] = "none"
    """With d, the log-prob before the step minus the one at sampling: `ratio` is exp(d), `k1` is -d, `k2` is d^2 / 2,
    `k3` is exp(d) - 1 - d."""
    level: Level = "token"
    """Whether it is measured for each token, or for a row: the sum over its tokens (`sequence`; of `ratio` the product)
    or their mean (`geometric`). A row is left out as a whole."""
    low: float | None = None
    """Left out below it. No bound when absent."""
    high: float | None = None
    """Left out above it. No bound when absent."""


class AlgorithmConfig(Table, frozen=True):
    """From rewards to a loss: advantage, proximal, correction, loss and aggregation are independent choices
    (docs/algorithms.md has their formulas)."""

    advantage: Literal["grpo", "dr_grpo", "rloo", "opo", "maxrl", "reinforce_pp", "reinforce_pp_baseline"] = "grpo"
    """How a rollout is judged against the others of its group; by the `reinforce_pp` forms against the whole batch."""
    loss: Literal["ppo", "reinforce", "gspo", "cispo", "sapo", "gmpo", "dppo", "clip_cov", "kl_cov"] = "ppo"
    """`ppo` is the clipped surrogate. `reinforce` is the plain policy gradient, without ratio and clip: only
    `correction` stands between it and rows of older versions, so it needs `proximal = "recompute"`. `gspo` and `gmpo`
    have one ratio for each row. Under `clip_cov` and `kl_cov`, which choose tokens by statistics of one pack, the
    result depends on `micro_batch_tokens` and on the number of ranks and shares; under all others it does not."""
    clip_low: NonNegativeFloat = 0.2
    """The ratio is clipped below at 1 - `clip_low`; without part under `proximal = "recompute"`, where it is 1."""
    clip_high: NonNegativeFloat = 0.28
    """The ratio is clipped above at 1 + `clip_high`; acts as `clip_low` does. Of `gmpo` both bound the log of the
    ratio, of `dppo` the divergence; `gspo` wants thousandths."""
    dual_clip: PositiveFloat | None = None
    """Of `ppo`: where the advantage is negative the ratio counts as this at most. No bound when absent."""
    sapo_tau_positive: PositiveFloat = 1.0
    """Of `sapo`: how soon the gradient fades as the ratio leaves 1, where the advantage is positive."""
    sapo_tau_negative: PositiveFloat = 1.05
    """The same where it is not."""
    divergence: Literal["tv", "kl"] = "tv"
    """Of `dppo`, between the sampled token and all others: the difference of probabilities, or the KL divergence."""
    cov_share: Fraction = 2e-4
    """Of `clip_cov` and `kl_cov`: the share of a pack's tokens that is held back, one at least; 2e-3 suits `kl_cov`."""
    cov_low: float = 1.0
    """Of `clip_cov`: they are chosen among those whose covariance is above it."""
    cov_high: float = 5.0
    """Of `clip_cov`: and below it."""
    cov_kl: NonNegativeFloat = 1.0
    """Of `kl_cov`: what the distance of their log-probs from `proximal` costs."""
    proximal: Literal["recompute", "interpolate", "rollout"] = "interpolate"
    """The policy that the ratio is against, and so what the clip holds the update close to: the one before the step,
    the one that sampled, or between the two by the row's age (A-3PO)."""
    correction: Literal["none", "tis", "icepop", "mis"] = "tis"
    """Weight of a token for the distance from the policy that sampled it to `proximal`: `tis` cuts it off at `tis_cap`,
    `mis` and `icepop` make it 0 beyond, `icepop` below `correction_low` too."""
    correction_level: Level = "token"
    """Whose ratio the weight is: the token's, or its row's (`sequence`: the product over the row; `geometric`: their
    geometric mean)."""
    tis_cap: PositiveFloat = 2.0
    """Upper bound of the importance weight."""
    correction_low: NonNegativeFloat = 0.5
    """Of `icepop`: its lower bound."""
    rejection: RejectionConfig = field(default_factory=RejectionConfig)
    least_effective_share: Fraction = 0.0
    """A notice says so when `correction/effective_share`, the share of tokens that weights of this spread are worth,
    falls under it; 0 never does."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"] = (
        "token_mean"
    )
    """How the losses of tokens become one number; the denominators are global."""
    horizon: Positive = 1024
    """Of `seq_mean_token_sum_norm`: the length that a row's sum is divided by; `rollout.sampling.max_new_tokens` is
    Dr.GRPO's."""
    entropy_coef: NonNegativeFloat = 0.0
    """What a nat of entropy, averaged as the loss is, takes off the loss. Above 0 rows without advantage are computed
    too."""
    kl_coef: NonNegativeFloat = 0.0
    """What a nat of divergence from the weights that the run began with (after a warm-up) adds to it. Above 0 the
    learner holds a second copy of the weights, and rows without advantage are computed too."""
    kl_estimator: Literal["k2", "k3", "k1+", "k3+"] = "k3+"
    """Its estimate; a plus has the gradient of `k2`, which is the divergence's."""

    @property
    def learns_from_advantages_alone(self) -> bool:
        """Whether a row without advantage gives no gradient."""
        return self.entropy_coef == 0.0 and self.kl_coef == 0.0


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
    """Ranks, each a process with a device of its own. FSDP2 shards the parameters over them."""
    tensor_parallel: Positive = 1
    """Ranks that each layer is spread over, a divisor of `num_workers`. They see the same rows, and wait for each other
    four times in a layer."""
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
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)

    @property
    def data_ranks(self) -> int:
        """Ranks that have rows of their own."""
        return max(self.num_workers // self.tensor_parallel, 1)
