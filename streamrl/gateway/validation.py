"""What is wrong with a body, told for its sender. Pure.

A part that may be of several kinds is checked against each. Of what each of them says, that of the kind which the
sender meant is told: the path has no names of ours, and the reason is the one that he can mend.
"""

import re
from collections.abc import Sequence
from typing import Any

from streamrl.gateway.refusal import Refusal, invalid

_BRANCH = re.compile(r"str|int|float|bool|.*\[.*|constrained-.*|[A-Z][A-Za-z]+")
"""What a validation puts into a path for the kind that it tried."""
_OTHER_KIND = ("string_type", "list_type", "dict_type", "int_type", "float_type", "bool_type", "model_type")
_NO_OBJECT = ("dict_type", "model_type", "model_attributes_type")
LONGEST_PATH = 80
_LONGEST_KIND = 40
"""Characters of a `type` that was sent which are told."""


def refusal_of(errors: Sequence[Any], content_type: str = "application/json") -> Refusal:
    """errors: of pydantic, at least one. content_type: of the request. Nothing that was sent is in the answer but the
    `type` of a part: the rest may be long, or secret."""
    found = _meant([dict(error) for error in errors], 0)
    path = [str(part) for part in found["loc"] if part != "body" and not _is_branch(part)]
    param = ".".join(path) or None
    if found["type"] == "json_invalid":
        return invalid("invalid_json", f"the body is not JSON: {found['ctx']['error']!a}")
    if param is None and found["type"] in _NO_OBJECT and "json" not in content_type.casefold():
        what = f"the content-type is {content_type[:_LONGEST_KIND]!a}" if content_type else "there is no content-type"
        return invalid("invalid_body", f"{what}, so the body is not read; send `content-type: application/json`")
    code = "missing_parameter" if found["type"] == "missing" else "invalid_value"
    return invalid(code, f"{'the body' if param is None else ascii(param)}: {_words(found)}", param)


def _is_branch(part: object) -> bool:
    return isinstance(part, str) and _BRANCH.fullmatch(part) is not None


def _meant(errors: list[dict[str, Any]], start: int) -> dict[str, Any]:
    """The error to tell. start: how much of the paths has been decided."""
    first = errors[0]
    place = next((i for i, part in enumerate(first["loc"]) if i >= start and _is_branch(part)), None)
    if place is None:
        return first
    before = first["loc"][:place]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for error in errors:
        if len(error["loc"]) > place and error["loc"][:place] == before:
            kinds.setdefault(error["loc"][place], []).append(error)
    near = [
        found for found in kinds.values() if len(found[0]["loc"]) > place + 1 or found[0]["type"] not in _OTHER_KIND
    ]
    if not near:
        wanted = dict.fromkeys(found[0]["msg"].removeprefix("Input should be ") for found in kinds.values())
        return {**first, "loc": before, "msg": f"Input should be {' or '.join(wanted)}"}
    types = [_type_error(found, place) for found in near]
    if len(types) > 1 and all(types):
        expected = ", ".join(dict.fromkeys(error["ctx"]["expected"] for error in types if error))
        return {**types[0], "msg": f"Input should be one of {expected}"}  # type: ignore[dict-item]
    of_type = [found for found, error in zip(near, types, strict=True) if error is None]
    return _meant(min(of_type or near, key=lambda found: _lacks(found, place)), place + 1)


def _type_error(errors: list[dict[str, Any]], place: int) -> dict[str, Any] | None:
    """The error that says of a kind's own `type` that it is another; None where there is none."""
    own = (error for error in errors if error["loc"][place + 1 :] == ("type",))
    return next((error for error in own if error["type"] == "literal_error"), None)


def _lacks(errors: list[dict[str, Any]], place: int) -> int:
    """How many of a kind's own fields are missing or of another kind: few for the one that was meant."""
    return sum(error["type"] in ("missing", "literal_error") for error in errors if len(error["loc"]) <= place + 2)


def _words(error: dict[str, Any]) -> str:
    if error["type"] != "literal_error" or error["loc"][-1:] != ("type",) or not isinstance(error.get("input"), str):
        return ascii(error["msg"])
    text = "; only text is read here" if error["ctx"]["expected"] == "'text'" else ""
    return f"{error['input'][:_LONGEST_KIND]!a} is not taken: {error['msg']!a}{text}"


def no_route(method: str, path: str, routes: Sequence[str]) -> str:
    """What is said of a path with nothing behind it. routes: the paths that there are."""
    told = f"there is no route {method} {path[:LONGEST_PATH]!a}"
    single = re.sub("/+", "/", path).rstrip("/")
    near = next((one for one in (single, re.sub("^(/v1)+", "/v1", single), f"/v1{single}") if one in routes), None)
    if near is None:
        return f"{told}; /docs lists those that there are"
    return f"{told}; there is {near}: a base URL ends with /v1, without a slash"
