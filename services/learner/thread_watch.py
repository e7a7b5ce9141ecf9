"""Where the thread is that computes, for who looks from another one. The look takes nothing from that thread."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_WAITING = ("torch/distributed/", "megatron/core/pipeline_parallel/p2p_communication.py")
"""Code whose innermost frame is a wait for other ranks."""


class ThreadWatch:
    """Example:
    watch = ThreadWatch()
    executor.submit(watch.run, work)
    place, waits = watch.place()
    """

    def __init__(self) -> None:
        self._thread: int | None = None

    def run(self, call: Callable[..., T], *args: object) -> T:
        """Call it, in the thread that is watched meanwhile."""
        self._thread = threading.get_ident()
        try:
            return call(*args)
        finally:
            self._thread = None

    def place(self) -> tuple[str, bool]:
        """("file:line function", whether that is a wait for other ranks) of the innermost call; ("", False) where the
        thread has nothing to do."""
        thread = self._thread
        frame = None if thread is None else sys._current_frames().get(thread)
        return ("", False) if frame is None else _described(frame)


def _described(frame: FrameType) -> tuple[str, bool]:
    code = frame.f_code
    file = Path(code.co_filename)
    place = f"{file.parent.name}/{file.name}:{frame.f_lineno} {code.co_name}"
    return place, any(part in code.co_filename for part in _WAITING)
