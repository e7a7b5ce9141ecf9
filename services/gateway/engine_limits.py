"""What a run's engine can do for clients, as every gateway of it tells them."""

from collections.abc import Mapping
from typing import Final

from streamrl.config import Config
from streamrl.gateway.openai.requests import Limits
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import MOST_TOP_LOGPROBS

SERVERS: Final = ("vllm", "sglang")
TOP_LOGPROBS: Final[Mapping[str, int]] = dict.fromkeys(("torch", *SERVERS), MOST_TOP_LOGPROBS)
"""By engine, the tokens that it tells in the place of each, at most; 0 of those that are not here."""


def engine_limits(config: Config, name: str, longest_row: int, tokenizer: TextTokenizer) -> Limits:
    """name: of the run. longest_row: tokens of prompt and completion together."""
    engine = config.rollout.engine
    return Limits(
        model=name,
        context=longest_row,
        max_completions=config.gateway.max_completions,
        vocab_size=tokenizer.vocab_size,
        top_logprobs=TOP_LOGPROBS.get(engine, 0),
        follows_grammars=follows_grammars(engine, tokenizer),
        adjusts_logits=engine == "torch",
    )


def follows_grammars(engine: str, tokenizer: TextTokenizer) -> bool:
    """Whether an engine does over these tokens. Servers read none that have no bytes of their own, such as the letters
    of the small presets; the torch engine does."""
    return engine == "torch" or (engine in SERVERS and not tokenizer.is_plain())
