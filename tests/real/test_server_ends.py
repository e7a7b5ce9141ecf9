"""Real servers that are killed, stopped or fall silent: it is told within the limit, and nothing of them is left."""

import os
import signal
import threading
from dataclasses import replace

import psutil
import pytest
import torch
from support.engines.real_engines import (
    BFLOAT16,
    LONG,
    SEPARATE,
    TIED,
    Served,
    requests_of,
    step_until_it_raises,
    still_running,
)

from streamrl.engines.server.engine import ServerEngine
from streamrl.errors import ComponentError, ProcessDiedError
from streamrl.types import UpdateMode, Version


@pytest.mark.parametrize("kind", TIED, ids=str)
def test_a_server_that_falls_silent_is_dead_to_its_engine(server: Served) -> None:
    impatient = ServerEngine(server.engine._server, server.engine.version, replace(server.engine._limits, silence_s=1))
    stopped = server.processes()
    for process in stopped:
        process.suspend()
    impatient.submit(requests_of(1, name="silent"))
    with pytest.raises(ProcessDiedError, match=r"no word of request silent/0 for 1 s"):
        step_until_it_raises(impatient)
    for process in stopped:
        process.resume()


@pytest.mark.parametrize("kind", TIED, ids=str)
def test_a_server_that_is_stuck_in_an_update_is_dead_to_its_engine_and_ended_all_the_same(
    server: Served,
) -> None:
    server.engine._limits = replace(server.engine._limits, update_s=1.0)
    processes = server.processes()
    server.start(requests_of(4, new=LONG))
    for process in processes:
        process.suspend()
    with pytest.raises(ProcessDiedError, match=r"taking up version 0\.\d+ took longer than 1 s"):
        server.load(UpdateMode.RECOMPUTE)
    assert_nothing_is_left(server, processes)


@pytest.mark.parametrize("kind", SEPARATE, ids=str)
def test_weights_of_another_shape_that_reach_the_server_leave_the_old_version_or_none(server: Served) -> None:
    """What only the server could find out: vLLM's side of ours looks first, SGLang may have changed some of them."""
    processes = server.processes()
    server.engine._limits = replace(server.engine._limits, tensors=None)
    outcome = ComponentError if server.name == "vllm" else ProcessDiedError
    with pytest.raises(outcome) as caught:
        server.engine.load_weights({"model.norm.weight": torch.ones(7)}, Version(9, 9), UpdateMode.KEEP)
    assert type(caught.value) is outcome
    if server.name == "vllm":
        server.assert_parity(requests_of(2))
    else:
        assert_nothing_is_left(server, processes)


@pytest.mark.parametrize("kind", SEPARATE, ids=str)
def test_a_server_that_is_killed_while_it_generates_is_told_and_leaves_nothing(server: Served) -> None:
    processes = server.processes()
    server.start(requests_of(8, new=LONG))
    processes[0].kill()
    with pytest.raises(ProcessDiedError, match=rf"^{server.name}: .*its process ended with signal SIGKILL"):
        step_until_it_raises(server.engine)
    assert_nothing_is_left(server, processes)


@pytest.mark.parametrize("kind", BFLOAT16, ids=str)
def test_a_server_that_is_killed_while_it_takes_a_version_is_told_and_leaves_nothing(server: Served) -> None:
    processes = server.processes()
    for process in processes:
        process.suspend()
    killer = threading.Timer(1.0, os.kill, [processes[0].pid, signal.SIGKILL])
    killer.start()
    with pytest.raises(ProcessDiedError, match=r"the connection broke.*its process ended with signal SIGKILL"):
        server.load()
    killer.join()
    with pytest.raises(ProcessDiedError):
        server.engine.step()
    assert_nothing_is_left(server, processes)


def assert_nothing_is_left(server: Served, processes: list[psutil.Process]) -> None:
    server.engine.close()
    assert still_running(processes) == []
    assert not server.engine._server.folder.exists()
