"""Where another thread is, seen from this one."""

import socket
from concurrent.futures import ThreadPoolExecutor

from streamrl.services.learner.thread_watch import ThreadWatch, _described


def stands_still(end: socket.socket) -> bytes:
    end.sendall(b"there")
    return end.recv(1)


def test_a_thread_that_stands_still_is_told_by_file_line_and_function() -> None:
    watch, (mine, its) = ThreadWatch(), socket.socketpair()
    with mine, its, ThreadPoolExecutor(1) as thread:
        assert watch.place() == ("", False)
        working = thread.submit(watch.run, stands_still, its)
        assert mine.recv(5) == b"there"
        place, waits = watch.place()
        mine.sendall(b"x")
        assert working.result() == b"x"
    assert place.startswith("learner/test_thread_watch.py:")
    assert place.endswith(" stands_still")
    assert not waits
    assert watch.place() == ("", False)


def test_a_frame_of_torchs_collectives_is_a_wait() -> None:
    for file, waits in {"/x/torch/distributed/distributed_c10d.py": True, "/x/torch/nn/functional.py": False}.items():
        scope: dict[str, object] = {}
        exec(compile("import sys\ndef here():\n    return sys._getframe()", file, "exec"), scope)
        assert _described(scope["here"]()) == (f"{file.split('/')[-2]}/{file.split('/')[-1]}:3 here", waits)  # type: ignore[operator]
