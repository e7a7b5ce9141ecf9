"""The tables of `learner`: how the stage that trains does it, and its optimizer. Its algorithm is in `algorithm`."""

from typing import Annotated, Literal

from msgspec import Meta, field

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.table import Fraction, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Share, Table

LOGITS_BYTES = 5 * 2**30
"""Logits of 16k tokens in 16 bits, of a vocabulary of 150k."""


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
    """Keep only the input of each layer and the output of its attention, and compute the rest of the layer again in the
    backward: less memory, more time."""
    recompute_attention: bool = False
    """With `activation_checkpointing`, on a GPU by torch's own attention: compute the attention again, too."""
    kernels: Literal["auto", "torch"] = "auto"
    """What computes norms, rotary embedding, gate and softmax on a GPU: `auto` takes the Triton kernels of streamrl
    where there is Triton, `torch` one operation after the other. Compiled layers have kernels of their own."""
    logits_bytes: Positive = LOGITS_BYTES
    """Memory for logits on a GPU. Where it holds those of a whole pack, they are kept for the backward, and made once;
    else they are made twice, some tokens at a time."""
    compile: bool = False
    """Compile the layers with `torch.compile`, all but their attention. The first steps take longer; on a CPU it needs
    a C++ compiler. What was compiled is kept in the folder that TORCHINDUCTOR_CACHE_DIR names, for later runs."""
    offload: bool = False
    """Keep parameters, gradients and optimizer states in the CPU's memory, and step there; a layer's parameters are on
    the GPU while it computes. Of use with `learner.device = "cuda"` alone."""
    reduce_every_pack: bool = False
    """Add the gradients over the ranks after each pack, and not once for all packs of a share. Between packs a rank
    then holds its part of the gradients, and not the whole of them: less memory on many ranks, more to send."""


class CriticConfig(Table, frozen=True):
    """The critic of `learner.algorithm.advantage = "gae"`: a model of its own, over the same ranks, which learns
    the expected return of each token's row. Other advantages have no critic."""

    path: str | None = None
    """A Hugging Face model folder with the same tokenizer, from which the critic's decoder starts. When absent,
    it starts from the policy's initial weights. Its head starts at zero."""
    warmup_steps: NonNegative = 0
    """The number of first steps that train the critic alone. Each of them takes its batch and publishes a version with
    unchanged weights. The schedule of the policy's rate starts after them."""
    value_clip: PositiveFloat | None = 0.5
    """Clip range of the value loss: how far a value may move from that before the step. No clip when absent."""
    gamma: Fraction = 1.0
    """Discount factor for each token."""
    policy_lambda: Fraction = 1.0
    """Lambda of the policy's advantages: 1 takes the whole return of a row, 0 only the value of the next token."""
    length_alpha: PositiveFloat | None = None
    """Replaces `policy_lambda` by max(0, 1 - 1 / (length_alpha x tokens of the row)). VAPO uses 0.05."""
    value_lambda: Fraction = 1.0
    """Lambda of the returns that the critic learns."""
    whiten: bool = True
    """Normalize advantages to mean 0 and variance 1, over all trained tokens of the batch."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


class PrimeConfig(Table, frozen=True):
    """The implicit reward model of `learner.algorithm.advantage = "prime"`: a model of its own, over the same ranks,
    which begins as the policy and learns the rewards of rollouts, from 0 to 1. A token's reward is its log-prob under
    this model minus its log-prob under `learner.algorithm.reference`, times `beta`. Other advantages have no such
    model."""

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
    """Drop groups whose rewards are all equal (`zero_variance`); under `gdpo` those whose every component is equal."""
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


class MegatronConfig(Table, frozen=True):
    """The layout of `learner.backend = "megatron"` (extra `megatron`). Data parallel ranks are those that are left:
    `learner.num_workers` / (tensor_parallel x pipeline_parallel x context_parallel)."""

    tensor_parallel: Positive = 1
    """Ranks that the matrices of a layer, the embedding and the output layer are spread over. They see the same
    rows."""
    pipeline_parallel: Positive = 1
    """Stages that the layers are shared out to, each a rank or a group of ranks."""
    virtual_pipeline: Positive = 1
    """Model chunks that a stage has: with several, a pack goes over the stages as often, and a stage waits less.
    It needs `pipeline_parallel` above 1."""
    context_parallel: Positive = 1
    """Ranks that the tokens of a pack are spread over, for rows that are too long for one: in attention each has all of
    them and a part of the heads."""
    expert_parallel: Positive = 1
    """Ranks that the experts of a layer are shared out to. They are among the data parallel and tensor parallel
    ones."""
    expert_tensor_parallel: Positive = 1
    """Ranks that the matrices of one expert are spread over."""
    sequence_parallel: bool = False
    """Spread what is between a layer's matrices, as norms and router, over the tokens of the `tensor_parallel` ranks,
    too: less memory, and for models with experts a must."""
    distributed_optimizer: bool = True
    """Each data parallel rank keeps a part of the moments and float32 weights, and not all of them."""
    recompute: Literal["none", "attention", "layers"] = "none"
    """What is computed again in the backward, and not kept: the attention, or all of a layer but its input."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Format in which gradients are added over packs and ranks; those of adapters are float32. Forward and backward
    compute in `model.dtype`; weights of the optimizer and moments are float32."""


class LearnerConfig(Table, frozen=True):
    """The stage that trains; it is the clock of the run."""

    backend: Literal["fsdp", "megatron"] = "fsdp"
    """What trains: FSDP2 of torch, for any model that transformers has; or megatron-core, for the families in its table
    (Llama, Qwen2, Qwen3, Qwen3-MoE, Mixtral), by the layout of `[learner.megatron]`."""

    steps: Positive = 100
    """Batches of the whole run; each makes a version."""
    num_workers: Positive = 1
    """Ranks, each a process with a device of its own. FSDP2 shards the parameters over them."""
    nodes: Positive = 1
    """Nodes of a cluster that the ranks are shared out to, as many to each, the first to the run's own. Above 1 `runs`
    is in a file system that all of these nodes see."""
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
    """With `cuda`: how much of its GPU the rank takes of what Ray gives away; below 1 a replica may be on the same GPU.
    Memory is not divided by it: see to it that both fit (`rollout.kv_bytes`)."""
    threads: Positive = 1
    """Intra-op threads of one rank."""
    mini_batches: Positive = 1
    """The number of parts of a batch. Each part has whole groups and makes one optimizer update."""
    ppo_epochs: Positive = 1
    """Times that a batch is trained on, one after the other. With several updates a step, ratio, weights and rejections
    are against the policy before the first of them, which takes a further forward."""
    micro_batch_tokens: Positive = 16384
    """Tokens of one packed forward and backward. What rows have in common at their beginning counts once, and as an
    eighth of that for each further row."""
    router_aux_loss_coef: NonNegativeFloat = 0.0
    """What the loss that balances experts counts for, beside the algorithm's: that of the Switch Transformer over the
    tokens that predict a trained one (Qwen3-MoE, Mixtral; pretraining takes 0.001). It takes one forward more a step.
    0 leaves routers to the rewards."""
    router_replay: bool = False
    """Whether the engine records which experts each token goes to, and the learner sends it to the same ones, with the
    weights of its own router (Qwen3-MoE, Mixtral). Engines that record: SGLang, vLLM on a GPU, `torch` on a CPU. Tokens
    of which nothing is recorded go where the learner's router sends them."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    prime: PrimeConfig = field(default_factory=PrimeConfig)
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    megatron: MegatronConfig = field(default_factory=MegatronConfig)

    @property
    def ranks_per_node(self) -> int:
        return -(-self.num_workers // self.nodes)

    @property
    def data_ranks(self) -> int:
        """Ranks that have rows of their own."""
        same_rows = self.tensor_parallel * self.sequence_parallel
        if self.backend == "megatron":
            layout = self.megatron
            same_rows = layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel
        return max(self.num_workers // same_rows, 1)
