"""What the server says, on its way from the event loop's thread to the engine's.

Guarantees: nothing is lost, all comes in the order in which it was put in, and whoever waits is woken by it or by
`interrupt`, also by one from before the wait. It does not know what it carries.
"""

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """One thread takes, any thread puts and interrupts."""

    def __init__(self) -> None:
        self._news: list[T] = []
        self._interrupted = False
        self._wake = threading.Condition()

    def put(self, one: T) -> None:
        with self._wake:
            self._news.append(one)
            self._wake.notify()

    def interrupt(self) -> None:
        """Let the wait that is under way, or the next one, end at once."""
        with self._wake:
            self._interrupted = True
            self._wake.notify()

    def take(self) -> list[T]:
        """What is there now."""
        with self._wake:
            news, self._news = self._news, []
            return news

    def wait(self, limit_s: float) -> bool:
        """Wait until there is something or an interrupt; False when neither came within the limit."""
        with self._wake:
            came = self._wake.wait_for(lambda: self._news or self._interrupted, max(0.0, limit_s))
            self._interrupted = False
            return bool(came)
