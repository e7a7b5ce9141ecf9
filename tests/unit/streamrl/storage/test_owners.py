"""Who uses an address: the launch that claimed it last, whenever who claims dies."""

import pytest
from msgspec.structs import replace
from support.storage.stores import DiedError, DyingStore, How, memory_store

from streamrl.storage.object_set import COMMIT
from streamrl.storage.owners import Owner, claim, newest_owner

FIRST = Owner(
    run_id="abc", name="run", created_ns=1, folder="/runs/run", incarnation=0, token="t0", config="seed = 1\n"
)
SECOND = replace(FIRST, incarnation=1, token="t1")


def test_an_address_that_nobody_claimed_has_no_owner() -> None:
    assert newest_owner(memory_store()) is None


def test_the_last_claim_holds_and_those_before_it_are_gone() -> None:
    store = memory_store()
    for owner in (FIRST, SECOND):
        claim(store, owner)
    assert newest_owner(store) == SECOND
    assert len(store.list("")) == 1


@pytest.mark.parametrize("how", ["before", "after", "half"])
@pytest.mark.parametrize("at", range(4))
def test_who_claims_may_die_at_any_call_and_one_of_the_two_is_the_owner(at: int, how: How) -> None:
    store = memory_store()
    claim(store, FIRST)
    with pytest.raises(DiedError):
        claim(DyingStore(store, at, how), SECOND)
    assert newest_owner(store) in (FIRST, SECOND)
    claim(store, replace(FIRST, token="t2"))
    owner = newest_owner(store)
    assert owner is not None
    assert owner.token == "t2"


def test_a_torn_claim_is_none() -> None:
    store = memory_store()
    claim(store, FIRST)
    store.put(f"run_000009-x{COMMIT}", [b"half of"])
    assert newest_owner(store) == FIRST
    claim(store, SECOND)
    assert newest_owner(store) == SECOND
