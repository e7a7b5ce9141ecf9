"""One call for a batch, whatever the signature of the reward function behind it.

Two signatures are understood, plain or async:
    reward(completion: str, *, prompt, finish_reason, **payload) -> number | dict      one completion
    reward(completions: list[str], **columns) -> list of numbers                       a batch, as in TRL
The second is recognised by a parameter called `completions`. Guarantees one score for each item, in order,
and that what a function raises becomes a failed score of the item at fault. It has no time limit: the pool
has.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import numpy as np

from streamrl.errors import ConfigError
from streamrl.plugin import resolve
from streamrl.rewards.base import RewardItem, to_score
from streamrl.rewards.builtin import BUILT_IN
from streamrl.types import Score

RewardFunction = Callable[..., object]
Arguments = dict[str, object]

RESERVED = ("prompt", "finish_reason", "completion_ids")  # what streamrl passes beside the payload
RESERVED_COLUMNS = ("completions", "prompts", "finish_reasons", "completion_ids")


def resolve_reward(name: str) -> RewardFunction:
    """The reward function called `name`: a built-in one, or `module:function`. Raises ConfigError."""
    function = resolve(name, kind="reward", built_in=BUILT_IN)
    if not callable(function):
        raise ConfigError(f"reward {name!r} is a {type(function).__name__}, not a function")
    return function


class Scorer:
    """A reward function with its signature understood. Raises ConfigError for one that takes no completion.

    Async functions run in an event loop of the scorer's own, so `score` must not be called inside another
    one. `close` ends that loop."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function
        names = _parameter_names(function)
        self._takes_batch = "completions" in names.accepted
        self._names = names
        self._runner: asyncio.Runner | None = None

    def score(self, items: Sequence[RewardItem]) -> list[Score]:
        """One score for each item, in order."""
        if self._takes_batch:
            return self._score_columns(items)
        outcomes = [self._call_one(item) for item in items]
        return [to_score(outcome) for outcome in self._settled(outcomes)]

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _call_one(self, item: RewardItem) -> object:
        """What the function returns for one item, or the exception that it raised."""
        try:
            return self._function(item.completion, **self._arguments(item))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: anything may come out of it
            return error

    def _arguments(self, item: RewardItem) -> Arguments:
        payload = _payload(item, RESERVED)
        offered = {**payload, "prompt": item.prompt, "finish_reason": item.finish_reason}
        if "completion_ids" in self._names.accepted:
            offered["completion_ids"] = _token_ids(item)
        return self._names.select(offered)

    def _score_columns(self, items: Sequence[RewardItem]) -> list[Score]:
        """Score a batch in one call; if that fails as a whole, one by one, so that only the guilty item
        fails."""
        outcome = self._settled([self._call_columns(items)])[0]
        values = _as_list(outcome)
        if isinstance(values, list) and len(values) == len(items):
            return [to_score(value) for value in values]
        if len(items) > 1:
            return [self._score_columns([item])[0] for item in items]
        if isinstance(values, list):
            return [Score.failed(f"returned {len(values)} rewards for 1 completion")]
        if isinstance(outcome, BaseException):
            return [to_score(outcome)]
        return [Score.failed(f"returned {type(outcome).__name__}, not a list of rewards")]

    def _call_columns(self, items: Sequence[RewardItem]) -> object:
        try:
            return self._function(**self._columns(items))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: anything may come out of it
            return error

    def _columns(self, items: Sequence[RewardItem]) -> Arguments:
        payloads = [_payload(item, RESERVED_COLUMNS) for item in items]
        keys = dict.fromkeys(key for payload in payloads for key in payload)
        columns: Arguments = {key: [payload.get(key) for payload in payloads] for key in keys}
        columns["completions"] = [item.completion for item in items]
        columns["prompts"] = [item.prompt for item in items]
        columns["finish_reasons"] = [item.finish_reason for item in items]
        columns["completion_ids"] = [_token_ids(item) for item in items] if self._names.wants_ids else []
        return self._names.select(columns)

    def _settled(self, outcomes: list[object]) -> list[object]:
        """`outcomes` with every awaitable replaced by what it gives, or by what it raises."""
        waiting = {index: outcome for index, outcome in enumerate(outcomes) if inspect.isawaitable(outcome)}
        if waiting:
            self._runner = self._runner or asyncio.Runner()
            results = self._runner.run(_gather(list(waiting.values())))
            for index, result in zip(waiting, results, strict=True):
                outcomes[index] = result
        return outcomes


class _ParameterNames(msgspec.Struct, frozen=True):
    """accepted: names that can be given by keyword. takes_any: whether there is a `**` parameter."""

    accepted: frozenset[str]
    takes_any: bool

    @property
    def wants_ids(self) -> bool:
        return self.takes_any or "completion_ids" in self.accepted

    def select(self, offered: Arguments) -> Arguments:
        if self.takes_any:
            return offered
        return {name: value for name, value in offered.items() if name in self.accepted}


def _parameter_names(function: RewardFunction) -> _ParameterNames:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"reward {function!r}: its signature cannot be read: {error}") from error
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if "completions" not in named:
        first = parameters[0] if parameters else None
        if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
            raise ConfigError(
                f"reward {function!r} takes no completion; write "
                "`def reward(completion, *, prompt, **payload)` or `def reward(completions, **columns)`"
            )
        named.discard(first.name)
    return _ParameterNames(frozenset(named), takes_any)


def _payload(item: RewardItem, reserved: tuple[str, ...]) -> Arguments:
    payload = msgspec.json.decode(item.payload)
    if not isinstance(payload, dict):
        raise ValueError(f"the payload is a JSON {type(payload).__name__}, not an object")
    for key in reserved:
        if key in payload:
            raise ValueError(f"the payload has a key {key!r}, which streamrl passes itself; rename it")
    return payload


def _token_ids(item: RewardItem) -> list[int]:
    ids: list[int] = np.frombuffer(item.token_ids, dtype="<i4").tolist()
    return ids


def _as_list(outcome: object) -> object:
    """Lists, tuples, arrays and tensors as a list; anything else as it is."""
    if isinstance(outcome, tuple):
        return list(outcome)
    to_list = getattr(outcome, "tolist", None)
    return to_list() if callable(to_list) else outcome


async def _gather(awaitables: Sequence[Awaitable[object]]) -> list[object]:
    return await asyncio.gather(*awaitables, return_exceptions=True)
