"""One real server at a time for the tests of this folder. Tests of one kind of server stand together, those that end it
last; the next kind, or the next test after its end, starts another."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.engines.real_engines import KINDS, Kind, Served, served

_LIMIT_S = 900
"""Of a test that may have to start a server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LIMIT_S))
    rest = [item for item in items if item not in set(here)]
    items[:] = rest + sorted(here, key=_place)


def _place(item: pytest.Item) -> int:
    kind = item.callspec.params.get("kind") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    return KINDS.index(kind) if kind is not None else len(KINDS)


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Served]]:
    with ExitStack() as running:
        last: list[tuple[Kind, Served]] = []

        def serve(kind: Kind) -> Served:
            if not last or last[-1][0] != kind or last[-1][1].is_over:
                running.pop_all().close()
                last.append((kind, running.enter_context(served(kind, tmp_path_factory.mktemp(kind.name)))))
            return last[-1][1]

        yield serve


@pytest.fixture
def server(kind: Kind, pool: Callable[[Kind], Served]) -> Iterator[Served]:
    """With nothing to do; nothing of the test goes on in it afterwards."""
    if not kind.python.exists():
        pytest.skip(f"needs .venvs/{kind.name}: make engines")
    one = pool(kind)
    yield one
    one.clear()
