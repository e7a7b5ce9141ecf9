"""Bytes and tokens that follow from a configuration: the longest row, a step of rows, a request's KV cache.

Pure arithmetic. A built-in task's longest prompt is known here; a task of one's own is only known once its
module is loaded, so until then a prompt counts as one token, and whoever loads the task checks again with the
true length.
"""

from streamrl.config.estimates.model_facts import ModelFacts
from streamrl.config.known import LINEAR_LAYERS, TASK_LONGEST_PROMPT
from streamrl.config.schema.learner import LoraConfig, OptimizerConfig
from streamrl.config.schema.run import Config

TOKEN_BYTES = 9
"""A token of a row on disk: int32 id, float32 log-prob, uint8 origin."""
ROW_BYTES = 256
"""The rest of a row, as built-in tasks have it: ids, one span, sampling, payload."""
SPAN_BYTES = 16
"""A version's span in a row: int32 start, int32 incarnation, int64 step."""
RECORD_BYTES = 8192
"""Of an episode's record in a row, the last message aside."""
TEXT_BYTES = 16
"""Of a token's text, generously."""
SCORE_BYTES = 512
"""A row of scores, its reason cut to a line."""
JOURNAL_FILES = 4
"""Most segments of one replica's journal at once: two that are kept, the one that is written, the next one."""
FRAME_BYTES = 3072
"""What a frame takes beside its rows: Arrow's metadata, the offsets and the padding of each column. A rollout that ends
when no other does has a frame to itself."""
CHECKPOINT_HEAD_BYTES = 2**20
"""What describes the tensors of a checkpoint, generously."""
SUBMITTED_NAMES_BYTES = 48
"""What a submitted prompt's id, of 16 digits, adds to a row: it names the group and the rollout too."""
LEAST_LOG_BYTES = 64 * 2**10
"""Of one part's log, so that the reason of a failure stays in it."""
ADAPTER_BYTES = 4
"""Adapters are float32, whatever the model is."""
REWARD_CHILD_BYTES = 1280 * 2**20
"""Address space of a process with torch's CPU build and transformers, with room for one forward."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
MOMENT_BLOCK = 64
"""Elements of a row whose 8-bit moments have a scale in common: few, so that the rows of most models, and of their
parts over ranks, are a multiple of it."""
KV_MULTIPLE = 32
"""KV lengths are rounded up to this in the batch-invariant mode (design, section 6)."""
INVARIANT_ROWS = 4
"""Fewest rows of a forward pass in the batch-invariant mode (design, section 6)."""


def row_bytes(num_tokens: int) -> int:
    """Bytes of one rollout of `num_tokens` (prompt and completion) in the log, written together with many others."""
    return TOKEN_BYTES * num_tokens + ROW_BYTES


def worst_row_bytes(config: Config, prompt_tokens: int, text_bytes: int = 0) -> int:
    """Bytes of one rollout in the log at most: at full length, alone in its frame, under as many versions as
    admission allows; of an episode with as many branches as it has turns.

    prompt_tokens: of the longest prompt. text_bytes: the most that a prompt's own text adds to a row
    (`longest_row_text`); 0 as long as the task is not loaded.
    """
    versions = config.learner.max_staleness + 1
    rest = ROW_BYTES + versions * SPAN_BYTES + text_bytes + record_bytes(config)
    rows = config.environment.max_turns if config.plays_episodes else 1
    return FRAME_BYTES + TOKEN_BYTES * longest_row(config, prompt_tokens) + rows * rest


def route_bytes(config: Config, model: ModelFacts, prompt_tokens: int) -> int:
    """Bytes of the experts of a rollout's tokens in its row, at most; 0 where they are not recorded."""
    if not config.learner.router_replay:
        return 0
    each = 1 if model.num_experts < 256 else 2
    return each * model.num_layers * model.experts_per_token * longest_row(config, prompt_tokens)


def record_bytes(config: Config) -> int:
    """Bytes of what a row says of its episode, at most; 0 where rollouts are no episodes."""
    return RECORD_BYTES + final_bytes(config) if config.plays_episodes else 0


def final_bytes(config: Config) -> int:
    """Bytes of the last message of an episode that its record keeps."""
    return TEXT_BYTES * config.rollout.sampling.max_new_tokens


def longest_prompt(config: Config) -> int:
    """Tokens of the task's longest prompt, as far as it is known without loading the task."""
    return with_submitted(config, TASK_LONGEST_PROMPT.get(config.task.name, 1))


def with_submitted(config: Config, task_longest: int) -> int:
    """Tokens of the longest prompt, those that clients may submit included."""
    return max(task_longest, config.gateway.max_prompt_tokens if config.gateway.enabled else 0)


def longest_row_text(config: Config, task_longest: int) -> int:
    """Bytes that a prompt's own text adds to a row at most. task_longest: of the task's
    (`streamrl.tasks.prompts.longest_text`)."""
    return max(task_longest, SUBMITTED_NAMES_BYTES + config.gateway.max_payload_bytes if config.gateway.enabled else 0)


def longest_row(config: Config, prompt_tokens: int) -> int:
    """Tokens of the longest rollout; of an episode all of its branches together."""
    if config.plays_episodes:
        return config.environment.max_tokens
    return prompt_tokens + config.rollout.sampling.max_new_tokens


def log_writers(config: Config) -> int:
    """Writers of the queue's logs, each with a file of its own: the replicas, the reward stage, and of a gateway one
    for trajectories and one for their rewards."""
    return config.rollout.most_replicas + 1 + (2 if config.gateway.enabled else 0)


def waiting_bytes(config: Config) -> int:
    """Of trajectories in the logs that wait for the others of their groups, at most."""
    return config.gateway.waiting_bytes if config.gateway.enabled else 0


def spare_bytes(config: Config) -> int:
    """Of log files that are kept to be written over, on each node, at most. They count within the budget."""
    return config.queue.disk_budget // 16


def frame_rows(config: Config, worst_row: int) -> int:
    """Rollouts that one frame always has room for: what a segment holds, its head left out."""
    return max(1, config.queue.segment_bytes // worst_row - 1)


def step_bytes(config: Config, prompt_tokens: int) -> int:
    """Bytes of the rows of one learner step, at worst."""
    return config.rollouts_per_step * worst_row_bytes(config, prompt_tokens)


def kv_request_bytes(config: Config, model: ModelFacts, prompt_tokens: int) -> int:
    """Bytes of one request's KV cache at full length."""
    length = longest_row(config, prompt_tokens)
    if config.rollout.batch_invariant:
        length = -(-length // KV_MULTIPLE) * KV_MULTIPLE
    token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * DTYPE_BYTES[config.model.dtype]
    return token * length


def weight_bytes(config: Config, model: ModelFacts) -> int:
    """Bytes of one set of weights."""
    return model.num_parameters * DTYPE_BYTES[config.model.dtype]


def version_bytes(config: Config, model: ModelFacts) -> int:
    """Bytes of what is published at each step: the weights, or the adapters alone."""
    if not config.learner.lora.rank:
        return weight_bytes(config, model)
    return adapter_parameters(config.learner.lora, model) * ADAPTER_BYTES


def base_bytes(config: Config, model: ModelFacts) -> int:
    """Bytes of what is published once for each incarnation of the learner."""
    return weight_bytes(config, model) if config.learner.lora.rank else 0


def trained_parameters(config: Config, model: ModelFacts) -> int:
    """Elements that the optimizer changes."""
    lora = config.learner.lora
    return adapter_parameters(lora, model) if lora.rank else model.num_parameters


def adapter_parameters(lora: LoraConfig, model: ModelFacts, spread: int = 1) -> int:
    """Elements of the adapters: rank x (in + out) for each layer that has one. A layer of no known family counts as
    much as several of these could: room is made by it. spread: ranks that the layers are cut over; each has all of the
    end that is the hidden size."""
    hidden, wide = model.hidden_size, model.intermediate_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    other = {
        "q_proj": queries,
        "k_proj": keys,
        "v_proj": keys,
        "o_proj": queries,
        "gate_proj": wide,
        "up_proj": wide,
        "down_proj": wide,
    }
    most = hidden + 2 * wide + queries + 2 * keys
    ends = (hidden + other.get(name, most) // spread for name in lora.targets or LINEAR_LAYERS)
    return model.num_layers * lora.rank * sum(ends)


def lora_alpha(lora: LoraConfig) -> float:
    return 2.0 * lora.rank if lora.alpha is None else lora.alpha


def log_parts(config: Config) -> int:
    """Processes with a log of their own, at most: owner, controller, reward stage, gateway, replicas, learner ranks."""
    return 3 + config.gateway.enabled + config.rollout.most_replicas + config.learner.num_workers


def auxiliary_parameters(config: Config, model: ModelFacts) -> int:
    """Elements of the critic or the implicit reward model, 0 without one: as many as the policy's model has, where a
    critic's own does not say otherwise."""
    algorithm = config.learner.algorithm
    if not algorithm.has_auxiliary_model:
        return 0
    own = model.critic_parameters if algorithm.has_critic else None
    return model.num_parameters if own is None else own


def optimizers(config: Config) -> dict[str, OptimizerConfig]:
    """Those that the run has, by the name of their table."""
    learner = config.learner
    found = {"learner.optimizer": learner.optimizer}
    if learner.algorithm.has_critic:
        found["learner.critic.optimizer"] = learner.critic.optimizer
    if learner.algorithm.has_implicit_rewards:
        found["learner.prime.optimizer"] = learner.prime.optimizer
    return found


def moment_share(config: Config, model: ModelFacts) -> float:
    """Bytes of the policy's moments, as a share of what they have in float32; at most. Of adapters half of the matrices
    have rows that are too short for a block."""
    return 1.0 if config.learner.lora.rank else _moment_share(config, config.learner.optimizer, model)


def auxiliary_moment_share(config: Config, model: ModelFacts) -> float:
    """The same of the critic's or the implicit reward model's; of a critic that begins with another model no more is
    known than how large it is."""
    algorithm, learner = config.learner.algorithm, config.learner
    if algorithm.has_critic:
        return 1.0 if model.critic_parameters is not None else _moment_share(config, learner.critic.optimizer, model)
    return _moment_share(config, learner.prime.optimizer, model)


def _moment_share(config: Config, optimizer: OptimizerConfig, model: ModelFacts) -> float:
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    spread = config.learner.tensor_parallel
    rows = (model.hidden_size, model.intermediate_size // spread, queries // spread)
    if optimizer.kind == "adamw" or any(row % MOMENT_BLOCK for row in rows):
        return 1.0
    # Norms and biases of a layer, generously.
    vectors = model.num_layers * (2 * model.hidden_size + queries + 2 * keys + 2 * model.head_dim) + model.hidden_size
    small = min(1.0, vectors / model.num_parameters)
    return small + (1.0 - small) * (1 + 4 / MOMENT_BLOCK) / 4


def checkpoint_bytes(config: Config, model: ModelFacts) -> int:
    """Bytes of one checkpoint: what is trained in float32 and two moments of it, a reference that moves, and what
    describes them."""
    trained, auxiliary = trained_parameters(config, model), auxiliary_parameters(config, model)
    policy = trained * ((2 if averages(config) else 1) + 2 * moment_share(config, model))
    return round((policy + auxiliary * (1 + 2 * auxiliary_moment_share(config, model))) * 4) + CHECKPOINT_HEAD_BYTES


def reward_tokens(config: Config, model: ModelFacts) -> int | None:
    """Tokens of prompt and completion that the reward model takes; None for any number."""
    given = [one for one in (config.reward.model.max_tokens, model.reward_context) if one is not None]
    return min(given) if model.reward_parameters is not None and given else None


def scoring_child_bytes(model: ModelFacts) -> int:
    """Address space of a process that scores with the reward model: what torch and its libraries map, and the weights
    in float32, twice while they are read."""
    return REWARD_CHILD_BYTES + 2 * DTYPE_BYTES["float32"] * (model.reward_parameters or 0)


def averages(config: Config) -> bool:
    """Whether the reference is a moving average, which checkpoints hold."""
    algorithm = config.learner.algorithm
    return algorithm.has_reference and algorithm.reference.kind == "average"


def human_bytes(count: float) -> str:
    """`count` bytes in the largest binary unit that leaves it at least 1."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
