"""How a reward function wants to be called, read from its parameters' names. Pure.

reward(completion, *, prompt, finish_reason, **payload)                         ours: one completion
reward(completions, prompts, **columns)                                         TRL's: a batch
compute_score(data_source, solution_str, ground_truth, extra_info=None)         verl's: one completion
compute_score(data_sources, solution_strs, ground_truths, extra_infos)          verl's: a batch
reward_func(queries, prompts, labels)                                           OpenRLHF's: a batch
"""

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from streamrl.errors import ConfigError

RewardFunction = Callable[..., object]
Arguments = dict[str, object]


COMPLETION = "completion"
NOT_COMPLETIONS = ("prompt", "prompts", "finish_reason", "completion_ids")
"""What a first parameter may not be called: it would get the completion under the name of something else."""


class Style(Enum):
    """Who names the parameters, and whether they are of one completion or of a batch."""

    ONE = "one"
    BATCH = "batch"
    VERL_ONE = "verl one"
    VERL_BATCH = "verl batch"
    OPENRLHF = "OpenRLHF batch"


class Signature(msgspec.Struct, frozen=True):
    """accepted: names that can be given by keyword. takes_any: whether there is a `**` parameter. by_name: whether the
    completion is given by keyword, too, since it is not the first parameter. needed: those of the accepted that have no
    default."""

    style: Style
    accepted: frozenset[str]
    takes_any: bool
    by_name: bool = False
    needed: frozenset[str] = frozenset()

    @property
    def takes_batch(self) -> bool:
        return self.style in (Style.BATCH, Style.VERL_BATCH, Style.OPENRLHF)

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
    if style is Style.ONE:
        if COMPLETION in named and parameters[0].name != COMPLETION:
            return Signature(style, frozenset(named), takes_any, by_name=True, needed=frozenset(needed - {COMPLETION}))
        first = _first_of(parameters, name)
        named, needed = named - {first}, needed - {first}
    return Signature(style, frozenset(named), takes_any, needed=frozenset(needed))


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


def _style(named: set[str]) -> Style:
    if "completions" in named:
        return Style.BATCH
    if "queries" in named:
        return Style.OPENRLHF
    if "solution_str" in named:
        return Style.VERL_ONE
    return Style.VERL_BATCH if "solution_strs" in named else Style.ONE


def verl_arguments(completion: str, payload: dict[str, Any]) -> Arguments:
    """What verl's reward managers pass: the ground truth of the row's `reward_model`, its source and its extra info.

    A row that is not in verl's layout gives its `ground_truth`, else its `answer`."""
    return {
        "data_source": payload.get("data_source", ""),
        "solution_str": completion,
        "ground_truth": _truth(payload),
        "extra_info": payload.get("extra_info"),
    }


def openrlhf_arguments(prompt: str, completion: str, payload: dict[str, Any]) -> Arguments:
    """What OpenRLHF passes of one completion, each under its name there: the text of prompt and completion, that of the
    prompt, and the row's `label` or `labels`, else its answer as verl's have it."""
    label = next((payload[name] for name in ("label", "labels") if name in payload), None)
    return {
        "queries": prompt + completion,
        "prompts": prompt,
        "labels": _truth(payload) if label is None else label,
    }


def _truth(payload: dict[str, Any]) -> object:
    model = payload.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    return payload.get("ground_truth", payload.get("answer")) if truth is None else truth
