"""The tables of `learner`: how the stage that trains does it, its optimizer, and its algorithm."""

from typing import Annotated, Literal

from msgspec import Meta, field

from streamrl.config.table import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Share, Table


class OptimizerConfig(Table, frozen=True):
    """AdamW and its rate."""

    kind: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit` keeps the two moments of matrices in 8 bits, by blocks of 64 elements of a row (extra `low-bit`).
    Norms, biases, and matrices whose rows are no multiple of that have theirs in float32, as all have under `adamw`."""
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
    reduce_every_pack: bool = False
    """Add the gradients over the ranks after each pack, and not once for all packs of a share. Between packs a rank
    then holds its part of the gradients, and not the whole of them: less memory on many ranks, more to send."""


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


class ReferenceConfig(Table, frozen=True):
    """The policy that `kl_coef` holds the trained one to, that teaches it (`loss = "opd"`), or that rewards of tokens
    are measured from (`advantage = "prime"`): a second copy of the weights at the learner."""

    kind: Literal["initial", "path", "average"] = "initial"
    """`initial` is what the run began with, after a warm-up; `path` a model of the same vocabulary; `average` a moving
    average of the trained weights, which checkpoints hold too."""
    path: str | None = None
    """Of `path`: a local Hugging Face folder."""
    every: Positive = 1
    """Of `average`: steps between two moves."""
    decay: Fraction = 0.99
    """Of `average`: what a move keeps of it; the rest comes from the trained weights. With 0 it is a copy of them."""


class AlgorithmConfig(Table, frozen=True):
    """From rewards to a loss: advantage, proximal, correction, loss and aggregation are independent choices
    (docs/algorithms.md has their formulas)."""

    advantage: Literal[
        "grpo",
        "dr_grpo",
        "rloo",
        "opo",
        "maxrl",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "gdpo",
        "remax",
        "gae",
        "prime",
    ] = "grpo"
    """How a rollout is judged against the others of its group; by the `reinforce_pp` forms against the whole batch; by
    `gdpo` in each of its reward's `components`; by `remax` against a greedy rollout, which is the last of the group and
    not trained; by `gae` each of its tokens against a critic (`learner.critic`); by `prime` against its group, and so
    is each of its tokens, by rewards that a second model gives to tokens (`learner.prime`)."""
    components: dict[str, float] | None = None
    """Of `gdpo`: the components of the reward and what each weighs, `{ correct = 1.0, format = 0.2 }`. The reward
    function returns a dict that has them all; a score that lacks one has failed."""
    loss: Literal["ppo", "reinforce", "gspo", "cispo", "sapo", "gmpo", "dppo", "clip_cov", "kl_cov", "opd"] = "ppo"
    """`ppo` is the clipped surrogate. `reinforce` is the plain policy gradient, without ratio and clip: only
    `correction` stands between it and rows of older versions, so it needs `proximal = "recompute"`. `gspo` and `gmpo`
    have one ratio for each row. Under `clip_cov` and `kl_cov`, which choose tokens by statistics of one pack, the
    result depends on `micro_batch_tokens` and on the number of ranks and shares; under all others it does not. `opd`
    distils the model at `reference.path`: rewards and advantages have no part in it."""
    clip_low: NonNegativeFloat = 0.2
    """The ratio is clipped below at 1 - `clip_low`; without part under `proximal = "recompute"` in the
    first update of a step, where it is 1."""
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
    pause_effective_share: Fraction = 0.0
    """Where it stays under this for three steps in a row, the run commits a checkpoint and ends with exit code 4, for
    somebody to look at; `streamrl up` goes on from there. 0 never does."""
    most_mismatch_kl: PositiveFloat | None = None
    """A notice says so when `mismatch/kl`, the distance of engine and learner in nats, rises above it. It also sees
    what all tokens have in common, as of an engine that is off by the same everywhere. No bound when absent."""
    pause_mismatch_kl: PositiveFloat | None = None
    """Where it stays above this for three steps in a row, the run ends so too. No bound when absent."""
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
    """What a nat of divergence from the reference costs. Above 0 the learner holds a second copy of the weights."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it is paid: `loss` adds it to the loss of each token, rows without advantage among them; `reward` takes the
    sum over a row off its reward before the advantage is made, and under `gae` that of each token off its own."""
    kl_estimator: Literal["k1", "k2", "k3", "k1+", "k3+"] = "k3+"
    """Its estimate; a plus has the gradient of `k2`, which is the divergence's. The loss takes all but `k1`, the reward
    `k1`, `k2` and `k3`."""
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)

    @property
    def kl_in_loss(self) -> bool:
        return self.kl_coef > 0.0 and self.kl_in == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl_coef > 0.0 and self.kl_in == "reward"

    @property
    def kl_in_rows(self) -> bool:
        """Whether rewards of rows, not of tokens, pay it."""
        return self.kl_in_reward and not self.has_critic

    @property
    def has_reference(self) -> bool:
        """Whether the learner holds a second policy."""
        return self.kl_coef > 0.0 or self.loss == "opd" or self.has_implicit_rewards

    @property
    def loss_divergence(self) -> str:
        """The estimate that `loss/kl` is the mean of."""
        return "k1+" if self.loss == "opd" else self.kl_estimator

    @property
    def uses_start(self) -> bool:
        """Whether the loss looks at the policy as it is before a step."""
        return self.proximal != "rollout" or self.rejection.measure != "none"

    @property
    def learns_from_advantages_alone(self) -> bool:
        """Whether a row without advantage gives no gradient."""
        terms = self.entropy_coef > 0.0 or self.kl_in_loss
        return not terms and self.loss != "opd" and not self.has_judge

    @property
    def has_judge(self) -> bool:
        """Whether a second model is trained, which gives each token an advantage of its own."""
        return self.has_critic or self.has_implicit_rewards

    @property
    def component_names(self) -> tuple[str, ...]:
        """What each score must have a number for, beside the reward; in the order of every column of them."""
        return tuple(self.components or {})

    @property
    def component_weights(self) -> tuple[float, ...]:
        return tuple((self.components or {}).values())

    @property
    def has_greedy_sample(self) -> bool:
        """Whether the last sample of each group is generated greedily."""
        return self.advantage == "remax"

    @property
    def has_critic(self) -> bool:
        """Whether tokens are judged by a critic."""
        return self.advantage == "gae"

    @property
    def has_implicit_rewards(self) -> bool:
        """Whether tokens are rewarded by an implicit reward model."""
        return self.advantage == "prime"


class CriticConfig(Table, frozen=True):
    """The critic of `learner.algorithm.advantage = "gae"`: a model of its own, over the same ranks, which learns what
    each token's row will score. Without that advantage there is none."""

    path: str | None = None
    """A Hugging Face model folder that its decoder begins with, of the same tokenizer. The weights that the stream
    begins with when absent. Its head begins at zero."""
    warmup_steps: NonNegative = 0
    """First steps of the stream that train the critic alone: each takes its batch and makes a version, of equal
    weights; the policy's rate begins its course behind them."""
    value_clip: PositiveFloat | None = 0.5
    """The loss counts a value as moved by this at most from where it was before the step. No bound when absent."""
    gamma: Fraction = 1.0
    """Discount of a reward for each further token of the row."""
    policy_lambda: Fraction = 1.0
    """Of the advantages: 1 takes all that a row came to, 0 only what the next token's value says."""
    length_alpha: PositiveFloat | None = None
    """Makes the lambda of the advantages 1 - 1 / (this x tokens of the row), 0 at least, in place of `policy_lambda`;
    0.05 is VAPO's."""
    value_lambda: Fraction = 1.0
    """Of the returns that the critic learns."""
    whiten: bool = True
    """Whether advantages are brought to mean 0 and variance 1, over all trained tokens of the batch."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


class PrimeConfig(Table, frozen=True):
    """The implicit reward model of `learner.algorithm.advantage = "prime"`: a model of its own, over the same ranks,
    which begins as the policy and learns the rewards of rollouts, from 0 to 1. By how much a token is likelier under it
    than under `learner.algorithm.reference` is the token's reward. Without that advantage there is none."""

    beta: PositiveFloat = 0.05
    """Reward of a token for each nat by which its log-prob is above the reference's."""
    process_coef: PositiveFloat = 1.0
    """What the rewards of tokens count for in an advantage."""
    outcome_coef: NonNegativeFloat = 1.0
    """What the reward of the rollout counts for in it."""
    gamma: Fraction = 1.0
    """Discount of a token's reward for each token between; the rollout's is not discounted."""
    normalise: bool = False
    """Whether rewards of tokens are divided by the largest sum, whatever its sign, from a token to the end of its
    rollout in the batch: so they come to as much as rewards of rollouts from the beginning."""
    whiten: bool = False
    """Whether advantages are brought to mean 0 and variance 1, over all trained tokens of the batch."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


class OverlongConfig(Table, frozen=True):
    """What becomes of rollouts that come to the end of `rollout.sampling.max_new_tokens` (DAPO)."""

    buffer: NonNegative = 0
    """Tokens before the end over which the reward falls linearly, for advantages only: what is logged, filtered and
    evaluated is the reward as it was given. 0 leaves it as it is."""
    penalty: PositiveFloat = 1.0
    """What a rollout loses that used all of its tokens."""
    mask_truncated: bool = False
    """Leave rollouts that were cut off out of the loss and its denominators; their rewards stay in the baselines. A
    group that has no others is dropped (`truncated`)."""


class FilterConfig(Table, frozen=True):
    """Dynamic sampling (DAPO): a group that teaches nothing, or is too easy or too hard, is dropped as soon as its last
    score is there, and the next one of the data is generated in its place. Drops are counted by reason."""

    zero_variance: bool = False
    """Drop groups whose rewards are all equal (`zero_variance`); under `gdpo` those of which each component is."""
    low: float | None = None
    """Drop groups whose mean reward is below it (`too_hard`). No bound when absent."""
    high: float | None = None
    """Drop groups whose mean reward is above it (`too_easy`). No bound when absent."""
    limit: Positive = 200
    """With so many groups dropped in a row, none kept between them, a batch that is not full ends the run."""

    @property
    def drops(self) -> bool:
        """Whether there is anything that it could drop."""
        return self.zero_variance or self.low is not None or self.high is not None


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
    """Batches of the whole run; each makes a version."""
    num_workers: Positive = 1
    """Ranks, each a process with a device of its own. FSDP2 shards the parameters over them."""
    tensor_parallel: Positive = 1
    """Ranks that each layer is spread over, a divisor of `num_workers`. They see the same rows, and wait for each other
    four times in a layer."""
    sequence_parallel: Positive = 1
    """Ranks that the tokens of a pack are spread over, for rows that are too long for one; with `tensor_parallel` a
    divisor of `num_workers`. They wait for each other four times in a layer too."""
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
    gpu_share: Share = 1.0
    """Of `cuda`: how much of its GPU the rank takes of what Ray gives away; below 1 a replica may be on the same GPU.
    Memory is not divided by it: see to it that both fit (`rollout.kv_bytes`)."""
    threads: Positive = 1
    """Intra-op threads of one rank."""
    mini_batches: Positive = 1
    """Parts of a batch, groups whole, each of which makes an optimizer update of its own."""
    ppo_epochs: Positive = 1
    """Times that a batch is trained on, one after the other. With several updates a step, ratio, weights and rejections
    are against the policy before the first of them, which takes a further forward."""
    micro_batch_tokens: Positive = 16384
    """Tokens of one packed forward and backward."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    prime: PrimeConfig = field(default_factory=PrimeConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)

    @property
    def data_ranks(self) -> int:
        """Ranks that have rows of their own."""
        return max(self.num_workers // (self.tensor_parallel * self.sequence_parallel), 1)
