"""What a client asks for: what of OpenAI's request bodies reaches an engine. Pure.

Guarantees: a parameter that would change the answer and cannot be kept is refused, never dropped; every limit is
checked before anything is generated. What does not change the answer (`user`, `metadata`) is ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streamrl.conversations.formats.choose import HERMES, THINK
from streamrl.conversations.memory import NOTHING, Memory
from streamrl.conversations.tool_calls import MessageReader
from streamrl.errors import ConfigError
from streamrl.gateway.openai import parameters
from streamrl.gateway.openai.adjustments import adjustments_of, asking_for_adjustments
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest, Message, OpenAIRequest
from streamrl.gateway.openai.chat import ChatTemplate, no_template
from streamrl.gateway.openai.custom_tools import call_as_function
from streamrl.gateway.openai.extras import NO_EXTRAS, Extras, chat_extras, completion_extras
from streamrl.gateway.openai.forms import AUTO, NONE, AnswerForms
from streamrl.gateway.openai.grammars import asking_for_grammar, calls_grammar, grammar_of
from streamrl.gateway.openai.turns import ChatPrompt, Continued, ending_of
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.ids import completion_seed
from streamrl.models.chat_template import Ending
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import Adjustments, GenerationRequest, Grammar, IntArray, SamplingParams

MAX_STOPS = 16
LEAST_TEMPERATURE = 1e-3
"""Of those that are not 0: a smaller one divides logits beyond the numbers that an engine has."""
DEFAULT_COMPLETION_TOKENS = 16
"""Of `/v1/completions` without `max_tokens`, as OpenAI has it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """model: the one name that is served. context: tokens of prompt and completion together. max_completions: of one
    request. vocab_size: prompt ids are below it. top_logprobs: tokens that the engine tells in the place of each, at
    most; with 0 it tells no log-probs of prompts either. follows_grammars, adjusts_logits: the engine does."""

    model: str
    context: int
    max_completions: int
    vocab_size: int
    top_logprobs: int
    follows_grammars: bool = False
    adjusts_logits: bool = False


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request that can be answered: `n` completions of each prompt. prompts: int32 each. texts: of the prompts, None
    where one came as ids. tools: the JSON schema of each tool's arguments by its name, where calls of them are read.
    text_tools: those that take a text (`streamrl.gateway.openai.custom_tools`). parallel_calls: whether a message may
    have several. thinks: whether its answers begin within thoughts; None where these are not read. call_form,
    thought_form: in which both are read. written: ids of the special tokens that the texts of its answers show.
    usage_each: each chunk tells of it. return_token_ids: also where vLLM has them. ids_as_tokens: of log-probs.
    extras: what is shown beyond what was sampled. grammar: of the text of each answer. adjustments: of its logits.
    continued: the message that its answers go on with, None where they are messages of their own. conversation: that
    it is a part of, "" for none; memory: of what was said in it."""

    prompts: list[IntArray]
    n: int
    sampling: SamplingParams
    seed: int
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    logprobs: bool
    stream: bool
    usage: bool
    texts: tuple[str | None, ...]
    tools: Mapping[str, Any] | None = None
    text_tools: frozenset[str] = frozenset()
    parallel_calls: bool = True
    thinks: bool | None = None
    call_form: str = HERMES
    thought_form: str = THINK
    written: frozenset[int] = frozenset()
    usage_each: bool = False
    return_token_ids: bool = False
    ids_as_tokens: bool = False
    extras: Extras = NO_EXTRAS
    grammar: Grammar | None = None
    adjustments: Adjustments | None = None
    continued: Continued | None = None
    conversation: str = ""
    memory: Memory = NOTHING

    def reader(self, number: str) -> MessageReader:
        """Of its answers. number: of the request, unique in the run."""
        forms = {"call_form": self.call_form, "thought_form": self.thought_form}
        return MessageReader(number, self.tools, self.parallel_calls, self.thinks, **forms)

    def requests(self, prefix: str) -> list[GenerationRequest]:
        """One for each completion, in the order of the choices. Their seeds differ, and follow from `seed`."""
        count = len(self.prompts) * self.n
        made = []
        for index in range(count):
            prompt = self.prompts[index // self.n]
            request = GenerationRequest(
                f"{prefix}/{index}",
                prompt,
                completion_seed(self.seed, index),
                self.sampling,
                self.stop_token_ids,
                conversation=self.conversation if count == 1 else "",
                opening=self.memory.opening(prompt),
                top_logprobs=self.extras.top_logprobs,
                prompt_logprobs=self.extras.prompt_logprobs,
                grammar=self.grammar,
                adjustments=self.adjustments,
                tells_routes=bool(self.conversation),
            )
            made.append(request)
        return made


class _Prompts(NamedTuple):
    """Those of one request. texts: see `ParsedRequest`. param: that they came as."""

    ids: list[IntArray]
    texts: tuple[str | None, ...]
    param: str


class Reader:
    """Reads the requests for one model. random_seed: gives one to a request that brings none. memory: of the session
    that a request is part of."""

    def __init__(
        self,
        limits: Limits,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        tool_call_parser: str = AUTO,
        reasoning_parser: str = NONE,
    ) -> None:
        """tool_call_parser, reasoning_parser: in which forms answers to chats are read, as `AnswerForms` has them."""
        self.forms = AnswerForms(tokenizer, template, tool_call_parser, reasoning_parser)
        self._limits = limits
        self._tokenizer = tokenizer
        self._template = template

    def completion(self, body: CompletionRequest, random_seed: int, memory: Memory = NOTHING) -> ParsedRequest:
        """Raises Refusal for what cannot be answered."""
        self._check(body)
        given = _prompts_of(body.prompt)
        self._check_count(len(given), body.n or 1)
        special = body.add_special_tokens is not False
        ids = [self._ids(prompt, memory, special) for prompt in given]
        texts = tuple(prompt if isinstance(prompt, str) else None for prompt in given)
        most = body.max_tokens
        if most is None:
            most = min(DEFAULT_COMPLETION_TOKENS, self._limits.context - max(map(len, ids)))
        # An engine samples one token at least; with `max_tokens: 0` nobody is shown it.
        asked = self._parsed(body, _Prompts(ids, texts, "prompt"), max(1, most), body.logprobs is not None, random_seed)
        extras = completion_extras(body, ids, texts, self._tokenizer, self._limits.top_logprobs)
        return replace(asked, extras=extras, grammar=self._followed(grammar_of(body), body))

    def chat(self, body: ChatRequest, random_seed: int, memory: Memory = NOTHING) -> ParsedRequest:
        """Raises Refusal for what cannot be answered."""
        self._check(body)
        self._check_count(1, body.n or 1)
        prompt = self.prompt_of(body, memory)
        ids = self._encoded(prompt.text, "messages", memory, add_special_tokens=False)
        most = body.max_completion_tokens or body.max_tokens or max(1, self._limits.context - len(ids))
        prompts = _Prompts([ids], (prompt.text,), "messages")
        asked = self._parsed(body, prompts, most, bool(body.logprobs), random_seed)
        asked = replace(asked, extras=chat_extras(body, self._limits.top_logprobs))
        return self._as_read(replace(asked, continued=prompt.continued), body)

    def _as_read(self, asked: ParsedRequest, body: ChatRequest) -> ParsedRequest:
        """The same with what of its answers is read, and the grammar that these follow. Raises Refusal."""
        forms, (text,) = self.forms, asked.texts
        thinks = forms.thinks(text or "", asked.continued.written if asked.continued else "")
        written = asked.written | forms.written(calls=False)
        asked = replace(asked, thinks=thinks, thought_form=forms.thoughts or THINK, written=written)
        asked = replace(asked, grammar=self._followed(self._grammar(body, thinks), body))
        if not body.tools or _no_calls(body) or not forms.calls:
            return asked
        schemas = {one.name: one.function.parameters for one in body.functions()}
        parallel, written = body.parallel_tool_calls is not False, written | forms.written(calls=True)
        asked = replace(asked, tools=schemas, text_tools=body.text_tools(), parallel_calls=parallel)
        return replace(asked, call_form=forms.calls, written=written)

    def _grammar(self, body: ChatRequest, thinks: bool | None) -> Grammar | None:
        """Of an answer's text, behind its thoughts. Raises Refusal."""
        # A message that must make calls has no text for another grammar.
        forms = self.forms
        grammar = calls_grammar(body, forms.calls, thinks, forms.mark) or grammar_of(body, thinks, forms.mark)
        if grammar is not None and thinks is not None and self.forms.thoughts != THINK:
            param = next(iter(asking_for_grammar(body)))
            form = self.forms.thoughts
            what = f"{param} asks for text by a grammar, and thoughts of the form {form!a} cannot come before it"
            way_out = "leave it out, or set gateway.reasoning_parser to `think` or `none`"
            raise invalid("unsupported_parameter", f"{what}: {way_out}", param)
        return grammar

    def _followed(self, grammar: Grammar | None, body: OpenAIRequest) -> Grammar | None:
        """The same. Raises Refusal where the engine follows none."""
        if grammar is not None and not self._limits.follows_grammars:
            param = next(iter(asking_for_grammar(body)))
            what = f"{param} asks for text by a grammar, and the engine of this run (rollout.engine) follows none"
            raise invalid("unsupported_parameter", f"{what} over this model's tokens: leave it out", param)
        return grammar

    def _adjusted(self, asked: Adjustments | None) -> Adjustments | None:
        """The same. Raises Refusal where the engine changes no logits."""
        if asked is not None and not self._limits.adjusts_logits:
            param = next(iter(asking_for_adjustments(asked)))
            what = f"{param} changes logits, which the engine of this run (rollout.engine) does not"
            raise invalid("unsupported_parameter", f"{what}: leave it out", param)
        return asked

    def _parsed(
        self, body: OpenAIRequest, prompts: _Prompts, most: int, logprobs: bool, random_seed: int
    ) -> ParsedRequest:
        self._check_lengths(prompts, most)
        options, stop_ids = body.stream_options, self._stop_ids(body.stop_token_ids or [])
        # The token that ends a text is no part of it, as with vLLM.
        special = frozenset() if body.skip_special_tokens is not False else self._tokenizer.special_token_ids
        return ParsedRequest(
            prompts=prompts.ids,
            texts=prompts.texts,
            n=body.n or 1,
            sampling=_sampling(body, most),
            seed=random_seed if body.seed is None else body.seed,
            stops=_stops(body.stop),
            stop_token_ids=stop_ids,
            written=special.difference(stop_ids),
            logprobs=logprobs,
            stream=bool(body.stream),
            usage=not body.stream or bool(options and options.include_usage),
            usage_each=bool(options and options.include_usage and options.continuous_usage_stats),
            return_token_ids=bool(body.return_token_ids),
            ids_as_tokens=bool(body.return_tokens_as_token_ids),
            adjustments=self._adjusted(adjustments_of(body, self._limits.vocab_size, most)),
        )

    def check_model(self, name: str) -> None:
        """Raises Refusal for another model than the one that is served."""
        if name != self._limits.model:
            what = f"there is no model {name!a} here; this run serves {self._limits.model!a}"
            raise Refusal(404, "model_not_found", what, "model")

    def prompt_of(self, body: ChatRequest, memory: Memory = NOTHING) -> ChatPrompt:
        """The prompt of a conversation. Raises Refusal."""
        if self._template is None:
            raise no_template()
        tools = None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.functions()]
        if _no_calls(body):
            tools = None
        developer = "developer" if self._template.knows_developers else "system"
        sent, ending = ending_of(body, [_plain(message, developer) for message in body.messages])
        written: Sequence[Mapping[str, Any]] = memory.recalled(sent)
        try:
            text = self._template.render(written, tools, body.arguments(), ending)
        except Refusal:
            # Some templates count turns, and one that made calls is none; of a text they do not know that it did.
            if written == sent:
                raise
            written = sent
            text = self._template.render(written, tools, body.arguments(), ending)
        continued = Continued(sent[-1]["content"], written[-1]["content"]) if ending is Ending.CONTINUED else None
        return ChatPrompt(text, continued)

    def _check(self, body: OpenAIRequest) -> None:
        self.check_model(body.model)
        parameters.check(body.model_extra or {})

    def _check_count(self, prompts: int, n: int) -> None:
        most = self._limits.max_completions
        if prompts * n > most:
            what = f"{prompts * n} completions in one request; at most {most} (gateway.max_completions)"
            raise invalid("too_many_completions", what, "n" if n > 1 else "prompt")

    def _check_lengths(self, prompts: _Prompts, most: int) -> None:
        longest = max(map(len, prompts.ids))
        if min(map(len, prompts.ids)) == 0:
            raise invalid("empty_prompt", "a prompt has no token", prompts.param)
        if longest + most > self._limits.context:
            what = f"{longest} tokens of prompt and {most} of completion; the context has {self._limits.context}"
            raise invalid("context_length_exceeded", what, prompts.param)

    def _stop_ids(self, further: list[int]) -> tuple[int, ...]:
        if len(further) > MAX_STOPS:
            raise invalid("too_many_stops", f"{len(further)} stop ids; at most {MAX_STOPS}", "stop_token_ids")
        self.check_ids(further, "stop_token_ids")
        return tuple(dict.fromkeys((*self._tokenizer.eos_token_ids, *further)))

    def _ids(self, prompt: str | list[int], memory: Memory, special: bool) -> IntArray:
        if isinstance(prompt, str):
            return self._encoded(prompt, "prompt", memory, add_special_tokens=special)
        self.check_ids(prompt, "prompt")
        return np.array(prompt, np.int32)

    def check_ids(self, ids: list[int], param: str) -> None:
        """Raises Refusal for an id that is none of the model's."""
        if ids and max(ids) >= self._limits.vocab_size:
            what = f"{max(ids)} is no id of a token; they are below {self._limits.vocab_size}"
            raise invalid("token_out_of_range", what, param)

    def _encoded(self, text: str, param: str, memory: Memory, *, add_special_tokens: bool) -> IntArray:
        begun, rest = memory.begun(text)
        encoded = self.encoded(rest, param, add_special_tokens=add_special_tokens and not begun)
        return np.array([*begun, *encoded], np.int32)

    def encoded(self, text: str, param: str, *, add_special_tokens: bool) -> IntArray:
        """The ids of a text, int32 [n]. Raises Refusal for one that the vocabulary cannot express."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except ConfigError as error:
            raise invalid("not_encodable", ascii(str(error)), param) from error


def _prompts_of(prompt: Any) -> list[str | list[int]]:
    """The prompts of a request, whichever of the four forms it has."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not prompt:
        raise invalid("empty_prompt", "prompt is an empty list", "prompt")
    return list(prompt)


def _no_calls(body: ChatRequest) -> bool:
    return body.tool_choice == "none"


def _plain(message: Message, developer: str) -> dict[str, Any]:
    """developer: the role of developers in the template. Calls in the form before `tool_calls` are calls."""
    plain = message.model_dump(exclude_unset=True)
    if message.role == "developer":
        plain["role"] = developer
    if isinstance(message.content, list):
        plain["content"] = "".join(part.text for part in message.content)
    if message.role == "function":
        plain["role"] = "tool"
    if isinstance(call := plain.pop("function_call", None), dict) and not plain.get("tool_calls"):
        plain["tool_calls"] = [{"type": "function", "function": call}]
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_with_arguments(call) for call in plain["tool_calls"]]
    return plain


def _with_arguments(call: Any) -> Any:
    """The same with its arguments as an object, where they are the text of one."""
    call = call_as_function(call)
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _sampling(body: OpenAIRequest, most: int) -> SamplingParams:
    if body.temperature and body.temperature < LEAST_TEMPERATURE:
        what = f"temperature {body.temperature:g}; send 0, which is greedy, or {LEAST_TEMPERATURE:g} and more"
        raise invalid("invalid_value", what, "temperature")
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        max_new_tokens=most,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise invalid("too_many_stops", f"{len(stops)} stop strings; at most {MAX_STOPS}", "stop")
    if "" in stops:
        raise invalid("empty_stop", "an empty stop string would end every completion at once", "stop")
    return stops
