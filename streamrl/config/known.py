"""The names that ship with streamrl, and the facts about them that a check needs without loading them.

The registries proper are literal dicts beside the code (tasks, rewards, engine families), which a check must
not import. A test holds the two equal.
"""

TASK_LONGEST_PROMPT = {"arithmetic": 7}
"""Built-in tasks, each with the tokens of its longest prompt under a character tokenizer, BOS included:
`99+99=`."""

REWARDS = ("exact_match", "contains")
"""Built-in rewards."""

MODEL_TYPES = ("llama", "qwen2", "qwen3")
"""Families (`model_type` in a model's config.json) that the torch engine computes exactly."""

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers in the decoder of each of these families, in its order."""
