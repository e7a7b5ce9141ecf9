"""Models made from nothing, by name: their shape and their vocabulary.

Plain data: importing this loads neither torch nor transformers, so that a configuration can be checked
against it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from streamrl.errors import ConfigError

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL_TOKENS = (PAD, BOS, EOS)  # ids 0, 1, 2


class Preset(NamedTuple):
    """model_type: a Hugging Face model type. shape: what its config class takes, vocabulary and special ids
    aside. characters, words: the vocabulary of its tokenizer, after the special tokens; a word is one token wherever it
    stands. chat_template: "" for none."""

    model_type: str
    shape: Mapping[str, int | float | bool]
    characters: str
    words: tuple[str, ...] = ()
    chat_template: str = ""

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL_TOKENS) + len(self.characters) + len(self.words)

    @property
    def max_context(self) -> int:
        """Tokens that prompt and completion may have together."""
        return int(self.shape["max_position_embeddings"])

    def config_values(self) -> dict[str, int | float | bool]:
        """All that the model's config class is built from."""
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        return {**self.shape, **special, "vocab_size": self.vocab_size}


_TINY: Mapping[str, int | float | bool] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
_CHARACTERS = "0123456789+-*=? .()"
_PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
"""What a tool may answer: the calculator has messages of errors."""

# The words that a call of the calculator has beside its expression: one token each, so that a call is short.
_CALL_WORDS = ("<tool_call>", '{"name": "', "calculator", '", "arguments": {"expression": "', '"}}', "</tool_call>")
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>")
_TOOL_TEMPLATE = (
    "{% if tools %}<|tools|>{% for tool in tools %}{{ tool.function.name }}{% endfor %}<tool_call>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

PRESETS: Mapping[str, Preset] = {
    "tiny-qwen3": Preset("qwen3", _TINY, _CHARACTERS),
    "tiny-qwen3-tools": Preset(
        "qwen3", {**_TINY, "max_position_embeddings": 128}, _PRINTABLE, (*_ROLES, *_CALL_WORDS), _TOOL_TEMPLATE
    ),
}


def find_preset(name: str) -> Preset:
    """The preset called `name`; ConfigError lists what there is."""
    if name not in PRESETS:
        raise ConfigError(f"unknown model preset {name!r}; there is {', '.join(PRESETS)}, or give model.path")
    return PRESETS[name]
