"""How deep the JSON of a request is nested, without reading it. Pure.

Guarantees: what passes can be read, checked, rendered and written again by every route, each of which walks it by
calls of functions within one another; the memory that it takes to look is that of the body once more at most.
"""

import json
from typing import Final

import numpy as np

from streamrl.gateway.refusal import invalid

MOST_NESTED: Final = 128
"""Of objects and lists within one another. Published schemas of tools have some twenty."""
_PIECE: Final = 2**18
"""Bytes that are looked at in one go."""
_KEPT: Final = b'"[]{}'
_LEFT_OUT: Final = bytes(sorted(set(range(256)) - set(_KEPT)))
_STEPS: Final = np.zeros(256, np.int32)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def check_nesting(body: bytes) -> None:
    """Raises Refusal for a body that is nested deeper than `MOST_NESTED`. One that is no JSON may pass."""
    if json.detect_encoding(body) != "utf-8":
        # It is read in whichever of JSON's encodings it has.
        body = body.decode(json.detect_encoding(body), "replace").encode("utf-8", "replace")
    if body.count(b"[") + body.count(b"{") > MOST_NESTED and (depth := _depth(body)) > MOST_NESTED:
        what = f"its objects and lists are {depth} deep within one another; at most {MOST_NESTED} are read"
        raise invalid("nested_too_deep", f"{what}: send what is deeper as text")


def _depth(body: bytes) -> int:
    """Of objects and lists outside of texts."""
    # An escaped quotation mark ends no text, and the backslash before it may be escaped itself.
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _LEFT_OUT)
    quotes = depth = deepest = 0
    for begin in range(0, len(marks), _PIECE):
        piece = np.frombuffer(marks, np.uint8, count=min(_PIECE, len(marks) - begin), offset=begin)
        seen = quotes + np.cumsum(piece == ord('"'))
        depths = depth + np.cumsum(np.where(seen % 2, 0, _STEPS[piece]))
        quotes, depth, deepest = int(seen[-1]), int(depths[-1]), max(deepest, int(depths.max()))
    return deepest
