"""The tables of `learner.algorithm`: what a rollout is worth, and what the loss makes of it."""

from typing import Literal

from msgspec import field

from streamrl.config.schema.table import Fraction, NonNegativeFloat, Positive, PositiveFloat, Table

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
    """With `path`: a local Hugging Face folder."""
    every: Positive = 1
    """With `average`: steps between two moves."""
    decay: Fraction = 0.99
    """With `average`: what a move keeps of it; the rest comes from the trained weights. With 0 it is a copy of them."""


class AlgorithmConfig(Table, frozen=True):
    """From rewards to a loss: advantage, proximal, correction, loss and aggregation are independent choices
    (docs/guides/algorithms.md has their formulas)."""

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
    """With `gdpo`: the components of the reward and what each weighs, `{ correct = 1.0, format = 0.2 }`. The reward
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
    """With `ppo`: where the advantage is negative the ratio counts as this at most. No bound when absent."""
    sapo_tau_positive: PositiveFloat = 1.0
    """With `sapo`: how soon the gradient fades as the ratio leaves 1, where the advantage is positive."""
    sapo_tau_negative: PositiveFloat = 1.05
    """The same where it is not."""
    divergence: Literal["tv", "kl"] = "tv"
    """Of `dppo`, between the sampled token and all others: the difference of probabilities, or the KL divergence."""
    cov_share: Fraction = 2e-4
    """With `clip_cov` and `kl_cov`: the share of a pack's tokens held back, at least one; 2e-3 suits `kl_cov`."""
    cov_low: float = 1.0
    """With `clip_cov`: they are chosen among those whose covariance is above it."""
    cov_high: float = 5.0
    """With `clip_cov`: and below it."""
    cov_kl: NonNegativeFloat = 1.0
    """With `kl_cov`: what the distance of their log-probs from `proximal` costs."""
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
    """With `icepop`: its lower bound."""
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
    """With `seq_mean_token_sum_norm`: the length that a row's sum is divided by; `rollout.sampling.max_new_tokens` is
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
        return not terms and self.loss != "opd" and not self.has_auxiliary_model

    @property
    def has_auxiliary_model(self) -> bool:
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
