"""Responses that a later one may name as the one before. Pure.

Guarantees: what is kept takes `byte_limit` at most; those that were used last stay.
"""

from collections.abc import Sequence
from typing import Any

from streamrl.gateway.refusal import Refusal, json_bytes

OVERHEAD = 4
"""Bytes in memory of a byte of JSON: dictionaries are that much larger."""


class PastResponses:
    """Of one gateway.

    Example:
        past = PastResponses(2**26)
        past.keep("resp_1", messages)
        past.messages("resp_1")
    """

    def __init__(self, byte_limit: int) -> None:
        self._byte_limit = byte_limit
        self._kept: dict[str, tuple[list[dict[str, Any]], int]] = {}
        self.num_bytes = 0

    def keep(self, name: str, messages: Sequence[dict[str, Any]]) -> None:
        """The conversation that a response came to, with its own message. One that is too long by itself is not
        kept."""
        size = OVERHEAD * len(json_bytes(list(messages)))
        self._kept[name] = list(messages), size
        self.num_bytes += size
        while self.num_bytes > self._byte_limit:
            self.num_bytes -= self._kept.pop(next(iter(self._kept)))[1]

    def messages(self, name: str | None) -> list[dict[str, Any]]:
        """Of a response; none where none is named. Raises Refusal for one that is not kept."""
        if name is None:
            return []
        found = self._kept.pop(name, None)
        if found is None:
            what = f"response {name!a} is not kept here (any more): send the conversation as input"
            raise Refusal(404, "response_not_found", what, "previous_response_id")
        self._kept[name] = found
        return found[0]
