"""One call for a batch, whatever the signature of the reward function behind it.

The signatures of `signatures` are understood, plain or async. Guarantees one score for each item, in order, and that
what a function raises becomes a failed score of the item at fault. It has no time limit: the pool has.
"""

import asyncio
import difflib
import inspect
from collections.abc import Awaitable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import msgspec

from streamrl.config.toml_text import dotted
from streamrl.errors import ConfigError
from streamrl.plugin import resolve
from streamrl.rewards.arguments import (
    MESSAGES,
    STATE,
    Arguments,
    areal_arguments,
    assistant_message,
    openrlhf_arguments,
    slime_sample,
    token_ids,
    verifiers_arguments,
    verl_arguments,
)
from streamrl.rewards.base import RewardItem, shorten, to_score
from streamrl.rewards.builtin import BUILT_IN, MADE_BY_NAME
from streamrl.rewards.signatures import COMPLETION, RewardFunction, Style, called, signature_of
from streamrl.types import Score

RESERVED = ("prompt", "finish_reason", "completion_ids")  # what streamrl passes beside the payload
RESERVED_COLUMNS = ("completions", "prompts", "finish_reasons", "completion_ids")
TRL_LOGGERS = ("log_extra", "log_metric")
"""Functions that TRL gives a reward to note things by. Here a reward notes by what it returns."""
PARSER = "parser"
_PARSER = "; a parser of verifiers is bound in Python: `reward = functools.partial(function, parser=Parser())`"
_VERL = tuple(verl_arguments("", {}))
_OPENRLHF = tuple(openrlhf_arguments("", "", {}))
_AREAL = tuple(areal_arguments(RewardItem("")))
_VERIFIERS = tuple(verifiers_arguments(RewardItem(""), {}))
OFFERED: Mapping[Style, tuple[str, ...]] = {
    Style.ONE: RESERVED,
    Style.BATCH: (*RESERVED_COLUMNS, *TRL_LOGGERS),
    Style.VERL_ONE: (*RESERVED, *_VERL),
    Style.VERL_BATCH: tuple(f"{name}s" for name in _VERL),
    Style.OPENRLHF: _OPENRLHF,
    Style.AREAL: (*_AREAL, "finish_reason"),
    Style.VERIFIERS: (*RESERVED, *_VERIFIERS),
    Style.SLIME: ("args", "sample"),
    Style.SLIME_BATCH: ("args", "samples"),
}
"""The arguments that a function of each style is given whatever the rows have."""
NEEDS_MESSAGES = ("string indices must be integers", "'str' object has no attribute 'get'")
"""What Python says where a text is read as a list of messages."""


def resolve_reward(name: str) -> RewardFunction:
    """The reward function called `name`: a built-in one, or `module:function`. Raises ConfigError."""
    for prefix, make in MADE_BY_NAME.items():
        if name.startswith(prefix):
            return make(name.removeprefix(prefix))
    place = BUILT_IN.get(name)
    if place is not None:
        built_in = resolve(place, kind="reward", built_in={})
        assert callable(built_in), name
        return built_in
    function = resolve(name, kind="reward", built_in=BUILT_IN)
    if inspect.isclass(function):
        function = _instance(function, name)
    if not callable(function):
        raise ConfigError(f"reward {name!r} is a {type(function).__name__}, not a function")
    return function


def _instance(found: type, name: str) -> object:
    """An object of a class whose objects are called, as verl and TRL have them. Raises ConfigError."""
    try:
        return found()
    except Exception as error:
        # A class of the user's may raise anything.
        raise ConfigError(
            f"reward {name!r} is a class, and making an object of it fails with {type(error).__name__}: {error}; name "
            "an object of it instead"
        ) from error


@runtime_checkable
class SupportsClose(Protocol):
    """A function that has something to end."""

    def close(self) -> None: ...


class Scorer:
    """A reward function with its signature understood. options: further keyword arguments of each call. name: of the
    function in messages; its own when empty.

    Raises ConfigError for a function that takes no completion, and for an option that it does not take. Async functions
    run in an event loop of the scorer's own, so `score` must not be called inside another one. `close` ends that loop.
    """

    def __init__(self, function: RewardFunction, options: Mapping[str, Any] | None = None, name: str = "") -> None:
        self._function = function
        self._signature = signature_of(function, name)
        self._options = dict(options or {})
        self._name = name or called(function)
        self._require_known_options()
        self._runner: asyncio.Runner | None = None

    def _require_known_options(self) -> None:
        if self._signature.style in (Style.SLIME, Style.SLIME_BATCH):
            return  # they are its `args`
        accepted = sorted(self._signature.accepted)
        unknown = [] if self._signature.takes_any else sorted(self._options.keys() - self._signature.accepted)
        if unknown:
            near = difflib.get_close_matches(unknown[0], accepted, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            what = f"reward {self._name!r} takes no option {unknown[0]!r}; it takes {', '.join(accepted) or 'none'}"
            raise ConfigError(f"reward.options: {what}{hint}")

    def require(self, columns: Collection[str]) -> None:
        """Raise ConfigError where the function cannot be called without an argument that nobody gives. columns: the
        keys of the rows' payloads."""
        given = {*OFFERED[self._signature.style], *self._options, *columns}
        lacking = sorted(self._signature.needed - given)
        if lacking:
            names, key = ", ".join(map(repr, lacking)), dotted([self._name])
            raise ConfigError(
                f"reward {self._name!r} cannot be called without {names}: give it in reward.options, as "
                f"{{ {key} = {{ {lacking[0]} = ... }} }}, or as a column of the data; the rows have "
                f"{', '.join(sorted(columns)) or 'none'}{_PARSER if PARSER in lacking else ''}"
            )

    def score(self, items: Sequence[RewardItem]) -> list[Score]:
        """One score for each item, in order."""
        return [verdict or Score.failed("returned None") for verdict in self.verdicts(items)]

    def verdicts(self, items: Sequence[RewardItem]) -> list[Score | None]:
        """The same; None where the function returned None: it has no say on that item."""
        if self._signature.takes_batch:
            return self._score_columns(items)
        outcomes = [self._call_one(item) for item in items]
        return [None if outcome is None else self._score_of(outcome) for outcome in self._settled(outcomes)]

    def _score_of(self, outcome: object) -> Score:
        """A text that was read as a list of messages is told with the way to get messages."""
        score = to_score(outcome)
        raised = self._signature.style is Style.ONE and isinstance(outcome, TypeError | AttributeError)
        if raised and any(sign in score.reason for sign in NEEDS_MESSAGES):
            hint = "; a completion is text, and a list of messages where it is annotated so: `completion: list`"
            return Score.failed(shorten(score.reason + hint))
        return score

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        if isinstance(self._function, SupportsClose):
            self._function.close()

    def _call_one(self, item: RewardItem) -> object:
        """What the function returns for one item, or the exception that it raised."""
        try:
            if self._signature.style in (Style.VERL_ONE, Style.AREAL, Style.SLIME):
                return self._function(**self._arguments(item))
            given, arguments = self._completion(item)
            if self._signature.by_name:
                return self._function(**{**arguments, COMPLETION: given})
            return self._function(given, **arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: anything may come out of it
            return error

    def _completion(self, item: RewardItem) -> tuple[object, Arguments]:
        """The completion, and what is passed beside it. A column `state` means that a function that takes it, and does
        not ask for messages by its annotation, is none of verifiers."""
        if self._signature.style is not Style.VERIFIERS:
            return item.completion, self._arguments(item)
        payload = _payload(item, RESERVED)
        if not self._signature.of_messages and STATE in {*payload, *self._options}:
            return item.completion, self._arguments(item)
        there = verifiers_arguments(item, payload)
        return there.pop(COMPLETION), self._arguments(item, there)

    def _arguments(self, item: RewardItem, more: Arguments | None = None) -> Arguments:
        """more: what is passed beside what every function may have."""
        style = self._signature.style
        if style is Style.SLIME:
            sample = slime_sample(item, _payload(item, ()))
            return {"args": SimpleNamespace(**self._options), "sample": sample}
        payload = _payload(item, OFFERED[Style.AREAL] if style is Style.AREAL else RESERVED)
        offered: Arguments = {**payload, "prompt": item.prompt, "finish_reason": item.finish_reason}
        if "completion_ids" in self._signature.accepted:
            offered["completion_ids"] = token_ids(item.token_ids)
        if style is Style.VERL_ONE:
            offered |= verl_arguments(item.completion, payload)
        if style is Style.AREAL:
            offered |= areal_arguments(item)
        return self._signature.select({**offered, **(more or {}), **self._options})

    def _score_columns(self, items: Sequence[RewardItem]) -> list[Score | None]:
        """Score a batch in one call; if that fails as a whole, one by one, so that only the guilty item
        fails."""
        outcome = self._settled([self._call_columns(items)])[0]
        if self._signature.style is Style.OPENRLHF:
            outcome = _by_item(outcome, len(items))
        values = _as_list(outcome)
        if isinstance(values, list) and len(values) == len(items):
            return [None if value is None else to_score(value) for value in values]
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
        if self._signature.style is Style.VERL_BATCH:
            return self._verl_columns(items)
        if self._signature.style is Style.OPENRLHF:
            return self._openrlhf_columns(items)
        if self._signature.style is Style.SLIME_BATCH:
            samples = [slime_sample(item, _payload(item, ())) for item in items]
            return {"args": SimpleNamespace(**self._options), "samples": samples}
        payloads = [_payload(item, RESERVED_COLUMNS) for item in items]
        keys = dict.fromkeys(key for payload in payloads for key in payload)
        columns: Arguments = {key: [payload.get(key) for payload in payloads] for key in keys}
        pairs = list(zip(items, payloads, strict=True))
        columns["completions"] = [_as_trl_completion(item.completion, payload) for item, payload in pairs]
        columns["prompts"] = [payload.get(MESSAGES, item.prompt) for item, payload in pairs]
        columns["finish_reasons"] = [item.finish_reason for item in items]
        columns["completion_ids"] = [token_ids(item.token_ids) for item in items] if self._signature.wants_ids else []
        named = {name: _unheard for name in TRL_LOGGERS if name in self._signature.accepted}
        return self._signature.select({**columns, **named, **self._options})

    def _verl_columns(self, items: Sequence[RewardItem]) -> Arguments:
        payloads = [_payload(item, RESERVED_COLUMNS) for item in items]
        rows = [verl_arguments(item.completion, payload) for item, payload in zip(items, payloads, strict=True)]
        columns: Arguments = {f"{name}s": [row[name] for row in rows] for name in rows[0]} if rows else {}
        return self._signature.select({**columns, **self._options})

    def _openrlhf_columns(self, items: Sequence[RewardItem]) -> Arguments:
        """The columns of the rows, too, for a function that takes any."""
        payloads = [_payload(item, ()) for item in items]
        pairs = zip(items, payloads, strict=True)
        rows = [payload | openrlhf_arguments(item.prompt, item.completion, payload) for item, payload in pairs]
        keys = dict.fromkeys(key for row in rows for key in row)
        columns: Arguments = {key: [row.get(key) for row in rows] for key in keys}
        return self._signature.select({**columns, **self._options})

    def _settled(self, outcomes: list[object]) -> list[object]:
        """`outcomes` with every awaitable replaced by what it gives, or by what it raises."""
        waiting = {index: outcome for index, outcome in enumerate(outcomes) if inspect.isawaitable(outcome)}
        if waiting:
            self._runner = self._runner or asyncio.Runner()
            results = self._runner.run(_gather(list(waiting.values())))
            for index, result in zip(waiting, results, strict=True):
                outcomes[index] = result
        return outcomes


def _unheard(name: str, value: object) -> None:
    """In the place of TRL's loggers."""


def _payload(item: RewardItem, reserved: tuple[str, ...]) -> dict[str, Any]:
    payload = msgspec.json.decode(item.payload)
    if not isinstance(payload, dict):
        raise ValueError(f"the payload is a JSON {type(payload).__name__}, not an object")
    for key in reserved:
        if key in payload:
            raise ValueError(f"the payload has a key {key!r}, which streamrl passes itself; rename it")
    return payload


def _as_trl_completion(completion: str, payload: dict[str, Any]) -> object:
    """A completion as TRL gives it: of a conversation it is a message."""
    return assistant_message(completion) if MESSAGES in payload else completion


def _as_list(outcome: object) -> object:
    """Lists, tuples, arrays and tensors as a list; anything else as it is."""
    if isinstance(outcome, tuple):
        return list(outcome)
    to_list = getattr(outcome, "tolist", None)
    return to_list() if callable(to_list) else outcome


def _by_item(outcome: object, count: int) -> object:
    """What OpenRLHF's functions return, `{"rewards": ..., "scores": ..., "extra_logs": {...}}` with a list or tensor of
    `count` each, as one dict for each item; anything else as it is. `scores`, by which groups are left out there, are a
    number beside the reward here."""
    if not isinstance(outcome, Mapping) or "rewards" not in outcome:
        return outcome
    rewards, logs = _as_list(outcome["rewards"]), outcome.get("extra_logs")
    if not isinstance(rewards, list):
        return outcome["rewards"]
    noted = {"scores": outcome.get("scores"), **(logs if isinstance(logs, Mapping) else {})}
    columns = {name: values for name, value in noted.items() if isinstance(values := _as_list(value), list)}
    columns["reward"] = rewards
    for values in columns.values():
        if len(values) != count:
            return values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


async def _gather(awaitables: Sequence[Awaitable[object]]) -> list[object]:
    return await asyncio.gather(*awaitables, return_exceptions=True)
