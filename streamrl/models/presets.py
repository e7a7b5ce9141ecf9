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
    aside. characters: the vocabulary of its tokenizer, after the special tokens."""

    model_type: str
    shape: Mapping[str, int | float | bool]
    characters: str

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL_TOKENS) + len(self.characters)

    @property
    def max_context(self) -> int:
        """Tokens that prompt and completion may have together."""
        return int(self.shape["max_position_embeddings"])

    def config_values(self) -> dict[str, int | float | bool]:
        """All that the model's config class is built from."""
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        return {**self.shape, **special, "vocab_size": self.vocab_size}


PRESETS: Mapping[str, Preset] = {
    "tiny-qwen3": Preset(
        model_type="qwen3",
        shape={
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
        characters="0123456789+-*=? .()",
    ),
}


def find_preset(name: str) -> Preset:
    """The preset called `name`; ConfigError lists what there is."""
    if name not in PRESETS:
        raise ConfigError(f"unknown model preset {name!r}; there is {', '.join(PRESETS)}, or give model.path")
    return PRESETS[name]
