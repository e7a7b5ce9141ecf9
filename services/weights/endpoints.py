"""The two ends of a way of versions to another node: what gives, beside the actor of the run's node, and that node as
the taking end sees it.

A sender gives what lies on the shelf (`streamrl.weights.transport.shelf`) to a node; what `give` answers is a matter
between the two ends of one way. None of them checks bytes: `streamrl.weights.transport.pulls` does.
"""

from collections.abc import Awaitable, Collection
from typing import Any, Protocol, TypeVar

import ray
from ray.actor import ActorHandle

from streamrl.services.actors.deadline import within
from streamrl.services.actors.deaths import explain_death
from streamrl.weights.transport.pulls import TransferStep
from streamrl.weights.transport.shelf import Item

T = TypeVar("T")


class Sender(Protocol):
    """The sending end. One that has to meet a node before it can give it anything has a `meet`, too."""

    async def give(self, node: str, item: Item, told: Any) -> Any:
        """Have a node get an item. Raises DataError when it is gone, ComponentError when the node does not take it."""
        ...

    def keep_only(self, items: Collection[Item]) -> None:
        """Nobody asks for any other item from now on."""
        ...

    async def close(self) -> None: ...


class RunNode:
    """The run's own node as another one sees it: every call has a limit, and fails with a typed error."""

    def __init__(self, actor: ActorHandle, node: str, limit_s: float) -> None:
        self._actor = actor
        self.node = node
        self.limit_s = limit_s

    async def plan(self, manifest: bytes, have: Any) -> list[TransferStep]:
        return await self.bounded(self._actor.plan.remote(manifest, have), "the way to a version")

    async def meet(self) -> Any:
        return await self.bounded(self._actor.meet.remote(self.node), "a meeting")

    async def give(self, step: TransferStep, told: Any = None) -> Any:
        return await self.bounded(self.giving(step, told), str(Item(step.kind, step.version)))

    def giving(self, step: TransferStep, told: Any) -> Awaitable[Any]:
        return self._actor.give.remote(self.node, step.kind, step.version, told)

    async def bounded(self, answer: Awaitable[T], what: str) -> T:
        try:
            return await within(self.limit_s, answer, who=self.node, what=f"{what}, from the run's node,")
        except ray.exceptions.RayError as error:
            raise explain_death("the run's node", error) from error


class Given:
    """What was given to whom. A node that asks again for what it was given could not use it."""

    def __init__(self) -> None:
        self._given: set[tuple[str, Item]] = set()

    def again(self, node: str, item: Item) -> bool:
        """Whether this node was given it before; it is from now on."""
        known = (node, item) in self._given
        self._given.add((node, item))
        return known

    def keep_only(self, items: Collection[Item]) -> None:
        self._given = {(node, item) for node, item in self._given if item in items}
