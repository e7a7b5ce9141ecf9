"""Real servers that cut the model over two ranks: every version is whole on both, and all of them end together."""

import pytest
from support.engines.real_engines import (
    LONG,
    RUNNING,
    SHARDED,
    Served,
    requests_of,
    step_until_it_raises,
    still_running,
)

from streamrl.errors import ProcessDiedError
from streamrl.types import UpdateMode


@pytest.mark.parametrize("kind", SHARDED, ids=str)
def test_two_ranks_sample_from_the_version_that_they_say_before_and_after_an_update(server: Served) -> None:
    server.assert_parity(requests_of(8))
    server.load()
    server.assert_parity(requests_of(8))


@pytest.mark.parametrize("kind", SHARDED, ids=str)
def test_two_ranks_take_a_version_up_under_running_requests(server: Served) -> None:
    server.start(requests_of(RUNNING, new=LONG))
    server.load(UpdateMode.RECOMPUTE)
    server.go_on()
    for result in server.abort_all():
        assert [span.version for span in result.version_spans][-1] == server.engine.version
        assert len(result.version_spans) == 2
    server.assert_parity(requests_of(2))


@pytest.mark.parametrize("kind", SHARDED, ids=str)
def test_a_rank_that_is_killed_ends_the_server(server: Served) -> None:
    processes = server.processes()
    server.start(requests_of(4, new=LONG))
    processes[-1].kill()
    with pytest.raises(ProcessDiedError, match=rf"^{server.name}"):
        step_until_it_raises(server.engine)
    server.engine.close()
    assert still_running(processes) == []
