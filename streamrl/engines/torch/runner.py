"""What runs the passes of the torch engine: it holds the KV cache and turns rows into tokens, one token each a pass.

The engine decides which requests run, in which rows, and under which version. A runner knows rows, tokens and weights.
It may have one pass more on its way than the engine has read (`runs_ahead`): then the device never waits for the host.
"""

from collections.abc import Sequence
from typing import Protocol

from streamrl.engines.torch.admission import Admission, Budget, Rest, Segment
from streamrl.engines.torch.logits_processors.constrained import NO_CHANGES, RowChanges
from streamrl.engines.torch.logprobs.asked import Drawn
from streamrl.engines.torch.slots import SlotTable
from streamrl.engines.torch.weights import FusedWeights
from streamrl.types import LongArray


class Runner(Protocol):
    """Rows that decode, and the memory of their keys and values."""

    slots: int
    """Requests decoded at once."""
    token_bytes: int
    """Of keys and values of one token."""
    total_bytes: int
    """Of the whole cache."""
    prefill_tokens: int
    """Prompt tokens that start in one step, at most (one prompt always does)."""
    sorts_rows: bool
    """Whether a pass is cheaper with the longest requests first."""
    runs_ahead: bool
    """Whether `go_on` may be called before `collect`."""
    reads_rests: bool
    """Whether `begin` may be given rests, `move` what was kept, and `keep` be called."""

    @property
    def in_flight(self) -> int:
        """Passes that were started and not yet collected."""
        ...

    def budget(self) -> Budget:
        """What further requests may take of the cache."""
        ...

    def starts(self, free: int, waiting: int, tokens: int) -> bool:
        """Whether it is worth while to start requests now: `free` rows, `waiting` requests, the first of which may
        come to have `tokens` tokens. True where no row runs."""
        ...

    def packs(self, running: int, rows: int) -> bool:
        """Whether it is worth while to close the gaps that ended rows left."""
        ...

    def move(
        self,
        table: SlotTable,
        sources: LongArray,
        targets: LongArray,
        kept: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Rows `sources` go to `targets`, and of each of `kept` (from slot, to slot, tokens) what is kept, all at once;
        `table` is as it was before. No pass is in flight."""
        ...

    def keep(self, row: int, slot: int, tokens: int) -> None:
        """Have what a row that has ended has of its first tokens in a slot that no row has."""
        ...

    def forget(self, slots: Sequence[int]) -> None:
        """What is kept in these slots is not needed any more."""
        ...

    def lacks(self, tokens: int) -> bool:
        """Whether the cache has no memory left for a request that may come to have so many tokens, beside what is
        kept."""
        ...

    def assign(self, admission: Admission, places: LongArray) -> None:
        """Requests start in the rows `places`, which are empty."""
        ...

    def prefill(self, weights: FusedWeights, segments: Sequence[Segment]) -> None:
        """Compute keys and values of `segments` again, apart from any step."""
        ...

    def begin(
        self,
        weights: FusedWeights,
        table: SlotTable,
        segments: Sequence[Segment],
        rests: Sequence[Rest] = (),
        changes: RowChanges = NO_CHANGES,
    ) -> None:
        """Start a pass: read `segments` and `rests`, then one token for every row, of logits with `changes`. No pass
        is in flight."""
        ...

    def go_on(self, weights: FusedWeights) -> None:
        """Start the pass after the one in flight, on the tokens which that one draws. Only where `runs_ahead`."""
        ...

    def collect(self, table: SlotTable) -> Drawn:
        """Wait for the oldest pass. What it says of a row that had ended before means nothing. A log-prob that is not
        finite ends a row."""
        ...

    def drop(self, table: SlotTable) -> None:
        """Take note of rows that have ended."""
        ...

    def restart(self) -> None:
        """The rows read other tokens next than those that were drawn: the next pass is begun anew."""
        ...

    def used_bytes(self, table: SlotTable) -> int:
        """Of the cache, by running requests."""
        ...

    def close(self) -> None:
        """Free the cache."""
        ...
