"""Bytes and tokens that follow from a configuration: the longest row, a step of rows, a request's KV cache.

Pure arithmetic. A built-in task's longest prompt is known here; a task of one's own is only known once its
module is loaded, so until then a prompt counts as one token, and whoever loads the task checks again with the
true length.
"""

from streamrl.config.known import TASK_LONGEST_PROMPT
from streamrl.config.model_facts import ModelFacts
from streamrl.config.schema import Config

TOKEN_BYTES = 9
"""A token of a row on disk: int32 id, float32 log-prob, uint8 origin."""
ROW_BYTES = 256
"""The rest of a row: ids, spans, sampling, payload."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
KV_MULTIPLE = 32
"""KV lengths are rounded up to this in the batch-invariant mode (design, section 6)."""
INVARIANT_ROWS = 4
"""Fewest rows of a forward pass in the batch-invariant mode (design, section 6)."""


def row_bytes(num_tokens: int) -> int:
    """Bytes of one rollout of `num_tokens` (prompt and completion) in the log, at most."""
    return TOKEN_BYTES * num_tokens + ROW_BYTES


def longest_prompt(config: Config) -> int:
    """Tokens of the task's longest prompt, as far as it is known without loading the task."""
    return TASK_LONGEST_PROMPT.get(config.task.name, 1)


def longest_row(config: Config, prompt_tokens: int) -> int:
    """Tokens of the longest rollout."""
    return prompt_tokens + config.rollout.sampling.max_new_tokens


def step_bytes(config: Config, prompt_tokens: int) -> int:
    """Bytes of the rows of one learner step, at worst."""
    return config.rollouts_per_step * row_bytes(longest_row(config, prompt_tokens))


def kv_request_bytes(config: Config, model: ModelFacts, prompt_tokens: int) -> int:
    """Bytes of one request's KV cache at full length."""
    length = longest_row(config, prompt_tokens)
    if config.rollout.deterministic:
        length = -(-length // KV_MULTIPLE) * KV_MULTIPLE
    token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * DTYPE_BYTES[config.model.dtype]
    return token * length


def weight_bytes(config: Config, model: ModelFacts) -> int:
    """Bytes of one set of weights."""
    return model.num_parameters * DTYPE_BYTES[config.model.dtype]


def human_bytes(count: float) -> str:
    """`count` bytes in the largest binary unit that leaves it at least 1."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
