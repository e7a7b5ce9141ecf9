"""Versions by a collective library, a two-member group for each node (`streamrl.weights.transport.pair`). Both ends, of
`streamrl.services.weights.transports`.

    node   meet                     -> run_node   a lobby, for this node alone
    node   give, and join the lobby -> run_node   joins too; then passes the bytes of item after item, one give each
    either end fails                -> both leave; the next item begins with a new meeting

Guarantees: a node that does not come, stands still or dies costs its own give a limit, and nobody else anything: no
other node's group knows of it, and no thread stays when the limit is over.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

import msgspec

from streamrl.errors import DataError, StreamRLError
from streamrl.services.weights.endpoints import RunNode
from streamrl.weights.transport.pair import PIECE_BYTES, Backend, Lobby, Pair, Peer, Place, join
from streamrl.weights.transport.pulls import Buffer, TransferStep, in_thread
from streamrl.weights.transport.shelf import Item, VersionShelf

TELLS_WITHIN_S = 1.0
"""How long the other end has to say what it failed with, once the connection is gone."""


class Meeting(msgspec.Struct, frozen=True):
    """number: of all meetings of one sender."""

    number: int
    place: Place


@dataclass(slots=True)
class _Joined:
    """A node, as the sender has it: in the lobby, or in a pair."""

    number: int
    lobby: Lobby
    pair: Pair | None = None

    def close(self) -> None:
        self.lobby.close()
        if self.pair is not None:
            self.pair.close()


class CollectiveSender:
    """address: of this node, at which other nodes reach it."""

    def __init__(self, shelf: VersionShelf, address: str, backend: Backend, limit_s: float) -> None:
        self._shelf = shelf
        self._address = address
        self._backend: Backend = backend
        self._limit_s = limit_s
        self._joined: dict[str, _Joined] = {}
        self._numbers = itertools.count()

    async def meet(self, node: str) -> Meeting:
        """A place for this node to come to. What it had before is over."""
        self._part(node)
        lobby = await in_thread(Lobby, self._address, self._backend, self._limit_s)
        self._joined[node] = _Joined(next(self._numbers), lobby)
        return Meeting(self._joined[node].number, lobby.place)

    async def give(self, node: str, item: Item, told: int) -> None:
        """Pass the bytes of an item on in the meeting of that number, coming to it at the first time.

        Raises DataError (no such meeting, or the item is gone), DeadlineError and ProcessDiedError (they name node,
        phase and item). The meeting is over then.
        """
        joined = self._joined.get(node)
        if joined is None or joined.number != told:
            raise DataError(f"weights: {item}: there is no meeting {told} with node {node}; meet again")
        peer = Peer(f"node {node}", self._limit_s)
        try:
            if joined.pair is None:
                joined.pair = await in_thread(joined.lobby.join, peer, str(item))
            await in_thread(joined.pair.send, self._shelf.content(item), str(item))
        except BaseException:
            self._part(node, told)
            raise

    def keep_only(self, items: Collection[Item]) -> None:
        """Nothing is prepared for later."""

    async def close(self) -> None:
        for node in list(self._joined):
            self._part(node)

    def _part(self, node: str, number: int | None = None) -> None:
        """End a meeting, if it is still that one."""
        joined = self._joined.get(node)
        if joined is not None and number in (None, joined.number):
            del self._joined[node]
            joined.close()


class CollectiveTransport:
    """The node's end. address: of this node."""

    def __init__(self, run_node: RunNode, address: str) -> None:
        self._run_node = run_node
        self._address = address
        self._peer = Peer("the run's node", run_node.limit_s)
        self._met: tuple[int, Pair] | None = None

    async def receive(self, step: TransferStep) -> AsyncGenerator[Buffer, None]:
        what, giving = str(Item(step.kind, step.version)), None
        try:
            if self._met is None:
                meeting: Meeting = await self._run_node.meet()
                giving = asyncio.ensure_future(self._run_node.giving(step, meeting.number))
                pair = await in_thread(join, meeting.place, self._address, self._peer, what)
                self._met = meeting.number, pair
            else:
                number, pair = self._met
                giving = asyncio.ensure_future(self._run_node.giving(step, number))
            left = step.num_bytes
            while left:
                piece = await in_thread(pair.receive, min(left, PIECE_BYTES), what)
                left -= len(piece)
                yield piece
            await self._run_node.bounded(giving, what)
        except StreamRLError as error:
            await self.close()
            raise await self._reason(giving, what, error) from error
        except BaseException:
            await self.close()
            raise
        finally:
            if giving is not None:
                giving.cancel()

    async def close(self) -> None:
        """Leave the group; the other end notices."""
        if self._met is not None:
            self._met[1].close()
        self._met = None

    async def _reason(self, giving: "asyncio.Future[None] | None", what: str, error: StreamRLError) -> StreamRLError:
        """What went wrong: what the other end says, if it says so, knows better than that it is gone."""
        if giving is None or not (await asyncio.wait({giving}, timeout=TELLS_WITHIN_S))[0]:
            return error
        try:
            await self._run_node.bounded(giving, what)
        except StreamRLError as told:
            return told
        return error
