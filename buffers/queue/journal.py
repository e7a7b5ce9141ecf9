"""What the queue has written to its ledger, when that is durable, and what went wrong first.

Guaranteed: after the first failure nothing is written and nothing is acknowledged any more, and whoever asks gets
that failure; `on_failure` is called once per failed call, to wake those who wait. It does not know what a record
means, nor who waits.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from streamrl.buffers.ledger.ledger import Ledger
from streamrl.buffers.ledger.records import Record
from streamrl.errors import StreamRLError


class Journal:
    """The writing side of a queue. One event loop owns it."""

    def __init__(self, ledger: Ledger, on_failure: Callable[[], None], *notes: Callable[[Record], None]) -> None:
        """notes: each sees every record, as it is written."""
        self._ledger = ledger
        self._notes = notes
        self._on_failure = on_failure
        self._failure: StreamRLError | None = None
        self._last_write: Future[None] | None = None

    def write(self, *records: Record) -> None:
        """Append, in the order of the index's changes: no await may lie between a change and its record. Records of one
        call become durable together or not at all.

        Raises:
            StreamRLError: the ledger takes nothing any more.
        """
        try:
            self._last_write = self._ledger.append(*records)
        except StreamRLError as error:
            self._fail(error)
            raise
        for record in records:
            for note in self._notes:
                note(record)

    async def settled(self) -> None:
        """Wait until everything that was written so far is durable.

        Raises:
            StreamRLError: the write failed.
        """
        if self._last_write is None:
            return
        try:
            await asyncio.wrap_future(self._last_write)
        except StreamRLError as error:
            self._fail(error)
            raise

    @property
    def pause(self) -> str:
        """What a full disk keeps the ledger waiting for, in words; "" while it does not wait."""
        return self._ledger.pause

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the ledger; what was appended is durable then."""
        self._ledger.close()

    def _fail(self, error: StreamRLError) -> None:
        """The index is ahead of the ledger now: nothing more may be acknowledged."""
        self._failure = self._failure or error
        self._on_failure()
