"""How a reward function wants to be called, read from its parameters' names. Pure.

reward(completion, *, prompt, finish_reason, **payload)                         ours: one completion
reward(completions, prompts, **columns)                                         TRL's: a batch
compute_score(data_source, solution_str, ground_truth, extra_info=None)         verl's: one completion
compute_score(data_sources, solution_strs, ground_truths, extra_infos)          verl's: a batch
reward_func(queries, prompts, labels)                                           OpenRLHF's: a batch
reward_fn(prompt, completions, prompt_ids, completion_ids, **data)              AReaL's: one completion
rubric_func(completion: Messages, answer, state)                                verifiers': one, as messages
custom_rm(args, sample), custom_rm(args, samples)                               slime's: one completion, or a batch
"""

import inspect
import re
from collections.abc import Callable
from enum import Enum

import msgspec

from streamrl.errors import ConfigError
from streamrl.rewards.arguments import STATE, Arguments

RewardFunction = Callable[..., object]

COMPLETION = "completion"
NOT_COMPLETIONS = ("prompt", "prompts", "finish_reason", "completion_ids")
"""What a first parameter may not be called: it would get the completion under the name of something else."""
_OF_MESSAGES = re.compile(r"\b(list|sequence|iterable|messages)\b", re.IGNORECASE)
"""An annotation of the completion that says that it is a conversation."""


class Style(Enum):
    """Who names the parameters, and whether they are of one completion or of a batch."""

    ONE = "one"
    BATCH = "batch"
    VERL_ONE = "verl one"
    VERL_BATCH = "verl batch"
    OPENRLHF = "OpenRLHF batch"
    AREAL = "AReaL one"
    VERIFIERS = "verifiers one"
    SLIME = "slime one"
    SLIME_BATCH = "slime batch"


class Signature(msgspec.Struct, frozen=True):
    """accepted: names that can be given by keyword. takes_any: whether there is a `**` parameter. by_name: whether the
    completion is given by keyword, too, since it is not the first parameter. needed: those of the accepted that have no
    default. of_messages: whether the completion is annotated as a list."""

    style: Style
    accepted: frozenset[str]
    takes_any: bool
    by_name: bool = False
    needed: frozenset[str] = frozenset()
    of_messages: bool = False

    @property
    def takes_batch(self) -> bool:
        return self.style in (Style.BATCH, Style.VERL_BATCH, Style.OPENRLHF, Style.SLIME_BATCH)

    @property
    def wants_ids(self) -> bool:
        return self.takes_any or "completion_ids" in self.accepted

    def select(self, offered: Arguments) -> Arguments:
        """Of what could be given, what the function takes."""
        if self.takes_any:
            return offered
        return {name: value for name, value in offered.items() if name in self.accepted}


def signature_of(function: RewardFunction, name: str = "") -> Signature:
    """name: of the function in messages; its own when empty. Raises ConfigError for a function that takes no
    completion."""
    name = name or called(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"reward {name!r}: its signature cannot be read: {error}") from error
    by_keyword = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named, needed = {p.name for p in by_keyword}, {p.name for p in by_keyword if p.default is p.empty}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    style = _style(named)
    if style is not Style.ONE:
        return Signature(style, frozenset(named), takes_any, needed=frozenset(needed))
    by_name = COMPLETION in named and parameters[0].name != COMPLETION
    first = COMPLETION if by_name else _first_of(parameters, name)
    of_messages = _says_messages(next(p for p in parameters if p.name == first))
    style = Style.VERIFIERS if of_messages or STATE in named else Style.ONE
    named, needed = named if by_name else named - {first}, needed - {first}
    return Signature(style, frozenset(named), takes_any, by_name, frozenset(needed), of_messages)


def called(function: RewardFunction) -> str:
    """A function's own name, or the class of an object that is called."""
    return str(getattr(function, "__name__", type(function).__name__))


def _first_of(parameters: list[inspect.Parameter], name: str) -> str:
    """The parameter that gets the completion. Raises ConfigError."""
    first = parameters[0] if parameters else None
    if first is not None and first.kind is not first.KEYWORD_ONLY and first.name in NOT_COMPLETIONS:
        raise ConfigError(
            f"reward {name!r}: its first parameter gets the completion and is called {first.name!r}, which is "
            "something else; begin with `completion`"
        )
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ConfigError(
            f"reward {name!r} takes no completion; write "
            "`def reward(completion, *, prompt, **payload)` or `def reward(completions, **columns)`"
        )
    return first.name


def _says_messages(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is annotated as a list; the annotation may be text."""
    annotation = parameter.annotation
    return annotation is not parameter.empty and bool(_OF_MESSAGES.search(str(annotation)))


_MARKS = (
    ({"prompt", "completions", "prompt_ids"}, Style.AREAL),
    ({"completions"}, Style.BATCH),
    ({"queries"}, Style.OPENRLHF),
    ({"solution_str"}, Style.VERL_ONE),
    ({"solution_strs"}, Style.VERL_BATCH),
    ({"args", "sample"}, Style.SLIME),
    ({"args", "samples"}, Style.SLIME_BATCH),
)
"""Parameters that only a function of that style has; the first that are all there count."""


def _style(named: set[str]) -> Style:
    return next((style for marks, style in _MARKS if marks <= named), Style.ONE)
