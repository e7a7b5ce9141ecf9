"""The names that ship with streamrl, and the facts about them that a check needs without loading them.

The registries proper are literal dicts beside the code (tasks, rewards, engine families), which a check must
not import. A test holds the two equal.
"""

TASK_LONGEST_PROMPT = {"arithmetic": 7, "multiplication": 6, "seeds": 5}
"""Built-in tasks, each with the tokens of its longest prompt under a character tokenizer, BOS included:
`99+99=`."""

REWARD_MODEL = "reward_model"
"""The `reward.function` that is no function: the score of `reward.model` alone."""

REWARDS = (
    "exact_match",
    "contains",
    "exact",
    "math",
    "gsm8k",
    "multiple_choice",
    "format",
    "length",
    "overlong",
    "environment",
    "judge",
    "code",
    "http",
    REWARD_MODEL,
)
"""Built-in rewards."""

CODE_REWARD = "code"
"""The `reward.function` that runs programs, in the sandbox."""

ENVIRONMENT_REWARD = "environment"
"""The `reward.function` that is what the environment of an episode says."""

TOOL_ENVIRONMENT = "tools"
ENVIRONMENTS = (TOOL_ENVIRONMENT, "gymnasium", "nemo_gym", "openenv", "reasoning_gym", "verifiers", "word_chain")
"""Built-in environments."""

CREDITS = ("all", "continuous")
"""What a program is given that passes some of its tests: nothing, or the share of them."""

TURN_LIMIT = "max_new_tokens"
EPISODE_LIMITS = ("max_turns", "max_tool_calls", "max_tokens", TURN_LIMIT, "episode_timeout_s")
"""What can end an episode before its environment does, by the name of its key."""

PYTHON_TOOL = "python"
TOOLS = ("calculator", PYTHON_TOOL)
"""Built-in tools."""

MODEL_TYPES = ("llama", "qwen2", "qwen3")
"""Families (`model_type` in a model's config.json) that the torch engine has a fast way for. Any other decoder whose
layers mix tokens by attention, convolutions or recurrences is run by its own modules."""

EXPERT_TYPES = ("mixtral", "qwen3_moe")
"""Families with experts in each layer that it has one for, on a CPU."""

MIXING_TYPES = ("minimax", "nemotron_h", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2")
"""Families that mix tokens outside of attention in a way that neither the torch engine nor the learner takes. Each
model is asked when it is loaded; a check knows these without."""

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers in the decoder of each of these families, in its order."""

MEGATRON_TYPES = ("llama", "mixtral", "qwen2", "qwen3", "qwen3_moe")
"""Families that `learner.backend = "megatron"` has a mapping of weights for."""

MISSING_TORCHAO = "torchao is not installed; pip install 'torchao==0.18.*' (the extra low-bit), or set kind = \"adamw\""
"""What is said where the package of 8-bit optimizers is wanted and not there."""
