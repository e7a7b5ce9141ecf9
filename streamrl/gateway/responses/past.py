"""Responses that a later one may name as the one before, and their items, which it may name too. Pure.

Guarantees: what is kept takes `byte_limit` at most; those that were used last stay.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from streamrl.gateway.refusal import Refusal, json_bytes

OVERHEAD = 4
"""Bytes in memory of a byte of JSON: dictionaries are that much larger."""


Json = dict[str, Any]


class _Kept(NamedTuple):
    """messages: of the conversation, the response's own at the end."""

    messages: list[Json]
    items: list[Json]
    num_bytes: int


class PastResponses:
    """Of one gateway.

    Example:
        past = PastResponses(2**26)
        past.keep("resp_1", messages, items)
        past.messages("resp_1"), past.item("msg_1_0")
    """

    def __init__(self, byte_limit: int) -> None:
        self._byte_limit = byte_limit
        self._kept: dict[str, _Kept] = {}
        self._owners: dict[str, str] = {}
        """The response of each item, by its id."""
        self.num_bytes = 0

    def keep(self, name: str, messages: Sequence[Json], items: Sequence[Json] = ()) -> None:
        """The conversation that a response came to, with its own message, and the items of that. One that is too long
        by itself is not kept."""
        size = OVERHEAD * (len(json_bytes(list(messages))) + (len(json_bytes(list(items))) if items else 0))
        self._kept[name] = _Kept(list(messages), list(items), size)
        self._owners.update(dict.fromkeys((item["id"] for item in items), name))
        self.num_bytes += size
        while self.num_bytes > self._byte_limit:
            oldest = self._kept.pop(next(iter(self._kept)))
            self.num_bytes -= oldest.num_bytes
            for item in oldest.items:
                del self._owners[item["id"]]

    def item(self, name: str) -> Json:
        """Of a response that is kept. Raises Refusal for one of none."""
        owner = self._owners.get(name)
        if owner is None:
            what = f"item {name[:80]!a} is not kept here (any more): send the item itself"
            raise Refusal(404, "item_not_found", what, "input")
        kept = self._kept[owner] = self._kept.pop(owner)
        return next(item for item in kept.items if item["id"] == name)

    def messages(self, name: str | None) -> list[Json]:
        """Of a response; none where none is named. Raises Refusal for one that is not kept."""
        if name is None:
            return []
        found = self._kept.pop(name, None)
        if found is None:
            what = f"response {name!a} is not kept here (any more): send the conversation as input"
            raise Refusal(404, "response_not_found", what, "previous_response_id")
        self._kept[name] = found
        return found.messages
