"""When the scripted engine samples its next tokens, where it is told to take its time over them as a model does."""

import threading

from streamrl.clock import Clock


class Pace:
    """One step each `step_s` seconds, at most; 0 for as fast as they are asked for. Waits for the clock, and no longer
    than until `interrupt`, which any thread may call.

    Example:
        >>> from streamrl.clock import VirtualClock
        >>> clock = VirtualClock()
        >>> pace = Pace(0.5, clock)
        >>> pace.interrupt()
        >>> pace.due(), pace.due()
        (True, False)
    """

    def __init__(self, step_s: float, clock: Clock) -> None:
        self._step_s = step_s
        self._clock = clock
        self._next = clock.now()
        self._interrupted = threading.Event()

    def due(self) -> bool:
        """Wait until the next step is due, or for `interrupt`. Whether it is; the one after it is `step_s` later."""
        left = self._next - self._clock.now()
        if left > 0:
            self._interrupted.wait(left)
            self._interrupted.clear()
        now = self._clock.now()
        if now < self._next:
            return False
        self._next = now + self._step_s
        return True

    def interrupt(self) -> None:
        """End the wait; without one, the next."""
        self._interrupted.set()
