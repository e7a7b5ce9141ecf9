"""The names that ship with streamrl, and the facts about them that a check needs without loading them.

The registries proper are literal dicts beside the code (tasks, rewards, engine families), which a check must
not import. A test holds the two equal.
"""

TASK_LONGEST_PROMPT = {"arithmetic": 7}
"""Built-in tasks, each with the tokens of its longest prompt under a character tokenizer, BOS included:
`99+99=`."""

REWARD_MODEL = "reward_model"
"""The `reward.function` that is no function: the score of `reward.model` alone."""

REWARDS = ("exact_match", "contains", REWARD_MODEL)
"""Built-in rewards."""

MODEL_TYPES = ("llama", "qwen2", "qwen3")
"""Families (`model_type` in a model's config.json) that the torch engine computes exactly."""

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers in the decoder of each of these families, in its order."""

MISSING_TORCHAO = "torchao is not installed; pip install 'torchao==0.18.*' (the extra low-bit), or set kind = \"adamw\""
"""What is said where the package of 8-bit optimizers is wanted and not there."""
