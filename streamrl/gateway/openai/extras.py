"""What an answer shows beyond what was sampled: the likeliest tokens in the place of each, and the prompt. Pure.

Guarantees: what the run's engine does not tell is refused by name, before anything is generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamrl.conversations.text import TextStream
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest, OpenAIRequest
from streamrl.gateway.refusal import invalid
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import MOST_TOP_LOGPROBS, IntArray


class Echo(NamedTuple):
    """A prompt as an answer begins with it. offsets: of each of its tokens, the length of the text before it; none of
    them where no log-probs are told."""

    text: str
    offsets: list[int]


@dataclass(frozen=True, slots=True)
class Extras:
    """top: so many of the likeliest tokens are told in the place of each token that is shown. prompt_top: as many in
    those of the prompt, in vLLM's form; None where they are not asked for. echoes: of each prompt, where the answers
    begin with them; none otherwise. echo_scored: whether with their log-probs. completes: whether what was sampled is
    shown."""

    top: int = 0
    prompt_top: int | None = None
    echoes: tuple[Echo, ...] = ()
    echo_scored: bool = False
    completes: bool = True

    @property
    def top_logprobs(self) -> int:
        """So many are asked of the engine, in the place of each token."""
        return max(self.top, self.prompt_top or 0)

    @property
    def prompt_logprobs(self) -> bool:
        """Whether log-probs of the prompt are asked of the engine."""
        return self.echo_scored or self.prompt_top is not None


NO_EXTRAS = Extras()


def chat_extras(body: ChatRequest, most: int) -> Extras:
    """most: of the likeliest tokens that the engine tells; with 0 it tells no log-probs of prompts either. Raises
    Refusal."""
    if body.top_logprobs and not body.logprobs:
        what = f"top_logprobs is {body.top_logprobs}, and logprobs are not asked for; send `logprobs: true` with it"
        raise invalid("invalid_value", what, "top_logprobs")
    top = _checked(body.top_logprobs or 0, "top_logprobs", most)
    return Extras(top=top, prompt_top=_prompt_top(body, most))


def completion_extras(
    body: CompletionRequest, ids: Sequence[IntArray], texts: Sequence[str | None], tokenizer: TextTokenizer, most: int
) -> Extras:
    """ids, texts: of the prompts, None for the text of one that came as ids. most: as of `chat_extras`. Raises
    Refusal."""
    asked, echo = body.logprobs or 0, bool(body.echo)
    # Where the engine tells none, 1 is what it always was there: the log-probs of the sampled tokens alone.
    top = _checked(0 if asked == 1 and not most else asked, "logprobs", most)
    scored = echo and body.logprobs is not None
    if scored:
        _check_scores("echo", most)
    if body.max_tokens == 0 and not echo:
        what = "max_tokens is 0; send 1 or more, or `echo: true` with it, to have the prompt alone"
        raise invalid("invalid_value", what, "max_tokens")
    echoes = [_echo(tokenizer, *one, scored) for one in zip(ids, texts, strict=True)] if echo else []
    return Extras(top, _prompt_top(body, most), tuple(echoes), scored, completes=body.max_tokens != 0)


def _prompt_top(body: OpenAIRequest, most: int) -> int | None:
    if body.prompt_logprobs is None:
        return None
    _check_scores("prompt_logprobs", most)
    if body.stream:
        what = "prompt_logprobs come with a whole answer alone; leave out `stream`"
        raise invalid("invalid_value", what, "prompt_logprobs")
    return _checked(body.prompt_logprobs, "prompt_logprobs", most)


def _checked(number: int, param: str, most: int) -> int:
    """The same number of tokens. Raises Refusal for more than are told."""
    if number > MOST_TOP_LOGPROBS:
        what = f"{param} is {number}; {MOST_TOP_LOGPROBS} of the likeliest tokens are told at most"
        raise invalid("invalid_value", what, param)
    if number > most:
        what = f"{param} is {number}; the engine of this run (rollout.engine) tells {most} of the likeliest tokens"
        raise invalid("unsupported_parameter", f"{what}: ask for no more, or leave it out", param)
    return number


def _check_scores(param: str, most: int) -> None:
    if not most:
        what = f"{param} asks for log-probs of the prompt, and the engine of this run (rollout.engine) tells none"
        raise invalid("unsupported_parameter", f"{what}: leave it out", param)


def _echo(tokenizer: TextTokenizer, ids: IntArray, text: str | None, scored: bool) -> Echo:
    text = tokenizer.decode(ids) if text is None else text
    # What is decoded may be longer than what was sent, where a tokenizer changes spaces.
    offsets = TextStream(tokenizer).feed(ids.tolist()).offsets if scored else []
    return Echo(text, [min(offset, len(text)) for offset in offsets])
