"""From a row to what a prompt is made of: text or messages, and what the reward is given. Pure.

The usual names of columns are known (TRL's, verl's, GSM8K's, ShareGPT's); `data.columns` says others.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streamrl.tasks.data.values import plain, shown, whole_text

PROMPT_COLUMNS = (
    "prompt",
    "question",
    "problem",
    "messages",
    "conversations",
    "conversation",
    "instruction",
    "query",
    "input",
    "text",
)
"""Columns that hold the prompt, the first that a row has."""
ANSWER_COLUMNS = (
    "answer",
    "ground_truth",
    "reward_model.ground_truth",
    "final_answer",
    "expected_answer",
    "solution",
    "target",
    "gold",
    "label",
    "answers",
    "correct_answer",
    "reference_answer",
)
"""Columns that hold the right answer, the first that a row has."""
SUPERVISED_COLUMNS = ("output", "response", "completion")
"""What supervised data, as Alpaca's, calls answers; of a row that has no other and ends with no assistant's turn."""
TEXT_AS_IT_IS = ("prompt", "text")
"""Columns whose text the model continues as it stands."""
PASSED_BY_STREAMRL = (
    "prompt",
    "prompts",
    "completion",
    "completions",
    "completion_ids",
    "finish_reason",
    "finish_reasons",
)
"""Arguments of a reward function that a column must not shadow."""
DEMONSTRATION = "demonstration"
"""Key of a payload under which it has what a perfect model would write."""
_SHAREGPT = {
    "human": "user",
    "gpt": "assistant",
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "chatgpt": "assistant",
    "observation": "tool",
}

_MESSAGES_BEGIN = re.compile(r"\s*\[\s*\{")
_NO_COMMA = re.compile(r"\}\s+\{")
"""Between records of an array, as numpy writes it."""

Message = dict[str, Any]


class BadRow(ValueError):
    """A row that no prompt can be made of. The text names the column, the value and the way out."""


class Item(msgspec.Struct, frozen=True):
    """What a row says. prompt: a text, or messages. column: where it was. payload: what the reward is given."""

    prompt: str | list[Message]
    column: str
    system: str | None
    tools: list[dict[str, Any]] | None
    template_arguments: dict[str, Any]
    payload: dict[str, Any]


def item_of(row: Mapping[str, Any], names: Mapping[str, str], *, filled: bool = False) -> Item:
    """What a row says. names: `data.columns`. filled: whether None stands for keys that records lack. Raises BadRow."""
    _refuse_media(row)
    tidy = _without_missing if filled else _as_it_is
    column, value = _prompt(row, names)
    if isinstance(value, bytes):
        value = plain(value) or value
    value = _written_messages(value) if isinstance(value, str) else tidy(plain(value))
    prompt, ending = (_text(value, column, row), None) if isinstance(value, str) else _messages(value, column)
    payload = {key: plain(item) for key, item in row.items() if key not in PASSED_BY_STREAMRL and key != column}
    answer = _answer(row, names)
    if answer is None:
        answer = ending
    if answer is None and "answer" not in names:
        answer = _first_of(row, [name for name in SUPERVISED_COLUMNS if name != column])
    # A column that was named is the only one: where it has nothing, another of the usual name is no answer.
    if answer is not None or "answer" in names:
        payload["answer"] = plain(answer)
    if not isinstance(prompt, str):
        payload["messages"] = prompt
    if "demonstration" in names:
        payload[DEMONSTRATION] = _demonstration(row, names["demonstration"])
    system = lookup(row, names["system"]) if "system" in names else row.get("system")
    arguments = row.get("chat_template_kwargs")
    return Item(
        prompt,
        column,
        system if isinstance(system, str) and system else None,
        tidy(_tools(lookup(row, names.get("tools", "tools")))),
        tidy(plain(arguments)) if isinstance(arguments, Mapping) else {},
        payload,
    )


def _refuse_media(row: Mapping[str, Any]) -> None:
    """Raise BadRow for a row with an image, a video or a recording, as `datasets` has them: its prompt is about what
    the model would not see."""
    for column, value in row.items():
        if _is_media(value[0] if isinstance(value, list) and value else value):
            raise BadRow(
                f"column {column!r} has an image or a recording: streamrl trains on text alone; leave the column out "
                "where the prompt does without it, or the row"
            )


def _is_media(value: Any) -> bool:
    """As files have it, with bytes or a path, or decoded, as `datasets` streams it."""
    if not isinstance(value, Mapping):
        return type(value).__module__.partition(".")[0] in ("PIL", "torchcodec")
    kept = {"bytes", "path"} <= value.keys() and bool(value["bytes"] or value["path"])
    return kept or {"array", "sampling_rate"} <= value.keys()


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value of a column, or inside of nested records by a path with dots; None where there is none."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, str):
            value = _record(value)
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _record(text: str) -> Any:
    """A record that a file without nesting, as CSV, has as JSON or, as pandas writes it, as Python; else None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _written_messages(text: str) -> Any:
    """The messages that a text is, as JSON or, as pandas and numpy write a CSV file, as Python; any other text as it
    is."""
    if _MESSAGES_BEGIN.match(text) is None:
        return text
    found = _record(text)
    if found is None:
        found = _record(_NO_COMMA.sub("},{", text))
    is_chat = isinstance(found, list) and all(
        isinstance(one, dict) and ("role" in one or "from" in one) for one in found
    )
    return found if is_chat and found else text


def _demonstration(row: Mapping[str, Any], column: str) -> str:
    value = plain(lookup(row, column))
    if not isinstance(value, str | int | float) or value == "":
        raise BadRow(f"column {column!r} is {shown(value)}: no text to learn from (data.columns.demonstration)")
    return str(value)


def _prompt(row: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, Any]:
    known = (names["prompt"],) if "prompt" in names else PROMPT_COLUMNS
    for name in known:
        found = _called(row, name)
        value = lookup(row, found)
        if value is not None and value != "":
            return found, value
    empty = [name for name in known if name in row]
    if empty:
        raise BadRow(f"column {empty[0]!r} is {shown(row[empty[0]])}: the prompt is empty; leave the row out")
    there = ", ".join(map(str, row)) or "none"
    raise BadRow(f'no column {known[0]!r}; it has {there}: say which with data.columns = {{ prompt = "..." }}')


def _called(row: Mapping[str, Any], name: str) -> str:
    """What a row calls a column: `Question` and ` question` are `question` where there is none."""
    if name in row:
        return name
    return next((key for key in row if isinstance(key, str) and key.strip().casefold() == name), name)


def _answer(row: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    return _first_of(row, (names["answer"],) if "answer" in names else ANSWER_COLUMNS)


def _first_of(row: Mapping[str, Any], columns: Sequence[str]) -> Any:
    for name in columns:
        value = lookup(row, _called(row, name))
        if value is not None:
            return value
    return None


def _text(value: str, column: str, row: Mapping[str, Any]) -> str:
    if not whole_text(value):
        raise BadRow(f"column {column!r} is {shown(value)}: no text in UTF-8; mend the file's encoding")
    if not value.strip():
        raise BadRow(f"column {column!r} is {shown(value)}: the prompt is empty; leave the row out")
    more = row.get("input") if column == "instruction" else None
    return f"{value}\n\n{more}" if isinstance(more, str) and more.strip() else value


def _messages(value: Any, column: str) -> tuple[list[Message], Any]:
    """The messages before the model's turn, and what an assistant's message at their end says."""
    if isinstance(value, dict) and "role" in value:
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise BadRow(
            f"column {column!r} is {shown(value)}: neither a text nor a list of messages; write text, or "
            '[{"role": "user", "content": "..."}]'
        )
    messages = [_message(one, column) for one in value]
    ending = None
    if len(messages) > 1 and messages[-1]["role"] == "assistant":
        ending = messages.pop().get("content")
    return messages, ending


def _message(given: dict[str, Any], column: str) -> Message:
    """One message as chat templates know it, from OpenAI's form or ShareGPT's."""
    speaker = _SHAREGPT.get(str(given.get("from")).casefold())
    if "role" not in given and speaker is not None:
        given = {"role": speaker, "content": given.get("value")}
    role = given.get("role")
    if not isinstance(role, str) or not role:
        raise BadRow(f"column {column!r} has a message without a role: {shown(given)}; write {{role, content}}")
    content = given.get("content")
    if isinstance(content, list):
        content = _joined(content, column)
    if content is None and not given.get("tool_calls"):
        raise BadRow(f"column {column!r} has a message without content: {shown(given)}")
    if content is not None and not isinstance(content, str):
        raise BadRow(f"column {column!r} has a message whose content is {shown(content)}, not text or parts of text")
    # Arrow files have each key in each message: one that is missing is there as None.
    message = {**{key: item for key, item in given.items() if item is not None}, "role": role, "content": content or ""}
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [_call(one, column) for one in message["tool_calls"]]
    return message


def _call(given: Any, column: str) -> Any:
    """A call as templates want it: with its arguments as an object, which OpenAI's clients write as text."""
    function = given.get("function", given) if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return given
    arguments = _record(function["arguments"] or "{}")
    if not isinstance(arguments, dict):
        raise BadRow(f"column {column!r} has a call whose arguments are {shown(function['arguments'])}: no JSON object")
    read = {**function, "arguments": arguments}
    return {**given, "function": read} if "function" in given else read


def _as_it_is(value: Any) -> Any:
    return value


def _without_missing(value: Any) -> Any:
    """A value without the keys that its records lack: Arrow has each key of any row in each of them, as None."""
    if isinstance(value, dict):
        return {key: _without_missing(item) for key, item in value.items() if item is not None}
    return [_without_missing(item) for item in value] if isinstance(value, list) else value


def _joined(parts: list[Any], column: str) -> str:
    """The text of content in parts, a line for each."""
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise BadRow(
                f"column {column!r} has a part {shown(part)}: streamrl trains on text alone; leave the row out"
            )
        texts.append(text)
    return "\n".join(texts)


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, str):
        value = _record(value)
    found = plain(value)
    if not isinstance(found, list) or not found:
        return None
    if not all(isinstance(one, dict) for one in found):
        raise BadRow(f"column 'tools' is {shown(value)}: not a list of JSON schemas")
    return found
