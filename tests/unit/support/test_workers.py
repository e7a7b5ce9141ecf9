"""How many processes tests are run by, and where their folders lie."""

import pytest
from support.memory_folders import ENOUGH_BYTES, MEMORY, put_folders_in_memory
from support.workers import pytest_xdist_auto_num_workers, workers

GIB = 1 << 30
ROOT = "PYTEST_DEBUG_TEMPROOT"


@pytest.mark.parametrize(
    ("cores", "gib", "number"),
    [(2, 24, 3), (1, 24, 2), (2, 8, 2), (16, 32, 8), (2, 2, 1)],
    ids=["as cores say", "one core", "as memory says", "many cores", "hardly any memory"],
)
def test_there_are_more_than_cores_as_far_as_memory_goes(cores: int, gib: int, number: int) -> None:
    assert workers(cores, gib * GIB) == number


def test_what_the_user_says_of_their_number_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")
    assert pytest_xdist_auto_num_workers() is None


@pytest.mark.parametrize(
    ("free", "said", "root"),
    [
        (ENOUGH_BYTES, {}, str(MEMORY)),
        (ENOUGH_BYTES - 1, {}, None),
        (2 * ENOUGH_BYTES, {ROOT: "/elsewhere"}, "/elsewhere"),
    ],
    ids=["room", "too little room", "the user has said where"],
)
def test_folders_lie_in_memory_where_it_has_room(free: int, said: dict[str, str], root: str | None) -> None:
    put_folders_in_memory(said, free)
    assert said.get(ROOT) == root
