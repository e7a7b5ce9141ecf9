"""Who uses an address: one launch of one run, the one that claimed it last.

Guarantees: a claim is a commit of its own, so a torn one is none and the one before it holds. Stores offer no lock: of
two that claim at the same moment the higher number wins, and the other finds out before its next commit.
"""

from typing import Final

import msgspec

from streamrl.errors import DataError
from streamrl.storage.object_set import put_set, read_set, remove_set, set_names
from streamrl.storage.store import ObjectStore

PREFIX: Final = "run_"


class Owner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A launch that uses an address. token: of this launch alone. folder: of the run, on its machine. incarnation:
    number of the launch, from 0. config: of the run, as TOML. No secret."""

    run_id: str
    name: str
    created_ns: int
    folder: str
    incarnation: int
    token: str
    config: str


def newest_owner(store: ObjectStore) -> Owner | None:
    """None where nobody ever claimed the address."""
    for name in reversed(_names(store)):
        try:
            return msgspec.convert(read_set(store, name).facts, Owner)
        except (DataError, msgspec.ValidationError):
            continue  # torn, or gone since: the one before it holds
    return None


def claim(store: ObjectStore, owner: Owner) -> None:
    """Make `owner` the newest. What was there before goes."""
    before = _names(store)
    number = 1 + max((int(name.removeprefix(PREFIX).partition("-")[0]) for name in before), default=-1)
    put_set(store, f"{PREFIX}{number:06d}-{owner.token}", {}, msgspec.to_builtins(owner))
    for name in before:
        remove_set(store, name)


def _names(store: ObjectStore) -> list[str]:
    listed = (key for key in store.list("") if key.startswith(PREFIX))
    return [name for name in set_names(listed) if name.removeprefix(PREFIX).partition("-")[0].isdigit()]
