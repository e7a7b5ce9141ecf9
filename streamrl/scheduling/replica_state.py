"""The life of one rollout replica, as a pure state machine.

    STARTING --started--> PULLING --loaded--> SERVING <--loaded, update--> UPDATING
    each of these --drain--> DRAINING --drained--> STOPPED
    each of these, and DRAINING --fence, fail--> FENCED

Guaranteed: versions only go up; the replica is routable only under an acknowledged version at or above the
fleet's floor; an order that comes twice, or after a newer one, changes nothing; nor does a refused event; an
accepted request is counted until it is finished, and the replica does not stop before. STOPPED and FENCED are
the only ends. It knows nothing of engines, weights, time or Ray: the owner of the replica acts, and tells.
"""

from enum import StrEnum

from streamrl.errors import ComponentError, FencedError
from streamrl.types import Version


class ReplicaState(StrEnum):
    STARTING = "starting"
    PULLING = "pulling"
    SERVING = "serving"
    UPDATING = "updating"
    DRAINING = "draining"
    STOPPED = "stopped"
    FENCED = "fenced"


_ANSWERING = frozenset({ReplicaState.SERVING, ReplicaState.UPDATING})
_ENDED = frozenset({ReplicaState.STOPPED, ReplicaState.FENCED})
_COMING_UP = frozenset({ReplicaState.STARTING, ReplicaState.PULLING})


class ReplicaStateMachine:
    """One replica, from the launch of its process to its end.

    Orders (`pull`, `update`, `drain`) come from outside and carry a sequence number that grows with each
    order; they return whether they were taken. `started`, `loaded`, `drained`, `accepted`, `finished` and
    `fail` say what happened here. `epoch` is the writer epoch that the replica was started with.

    Example:
        >>> replica = ReplicaStateMachine("replica-0", epoch=1)
        >>> replica.started()
        >>> replica.pull(1, Version(0, 0))
        True
        >>> replica.loaded(Version(0, 0))
        >>> replica.routable, replica.update(1, Version(0, 3)), replica.update(2, Version(0, 4))
        (True, False, True)
        >>> str(replica.state), replica.target
        ('updating', Version(incarnation=0, step=4))
    """

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.state = ReplicaState.STARTING
        self.version: Version | None = None
        """The version that answers now: the last one acknowledged."""
        self.target: Version | None = None
        """The newest version it was told to take; newer than `version` while it is being taken."""
        self.floor: Version | None = None
        self.in_flight = 0
        """Requests accepted and not finished."""
        self.cause = ""
        """Why it is FENCED."""
        self._last_sequence = -1

    @property
    def routable(self) -> bool:
        """Whether a new request may be given to it."""
        if self.state not in _ANSWERING or self.version is None:
            return False
        return self.floor is None or self.version >= self.floor

    @property
    def ended(self) -> bool:
        """Whether no event can change its state any more."""
        return self.state in _ENDED

    # Orders ------------------------------------------------------------------------------------------------

    def pull(self, sequence: int, version: Version) -> bool:
        """Take the first version.

        Raises:
            ComponentError: it has one already (use `update`), or `version` is no newer than its target.
        """
        return self._take(sequence, version, f"pull({version})", _COMING_UP)

    def update(self, sequence: int, version: Version) -> bool:
        """Take a newer version. Before the first one it is the same as `pull`, which it may have overtaken.

        Raises:
            ComponentError: `version` is no newer than the target, or the replica is draining or has ended.
        """
        return self._take(sequence, version, f"update({version})", _COMING_UP | _ANSWERING)

    def drain(self, sequence: int) -> bool:
        """Accept nothing more; stop when the last request is finished.

        Raises:
            ComponentError: the replica has ended.
        """
        if sequence <= self._last_sequence:
            return False
        if self.state is not ReplicaState.DRAINING:
            self._expect("drain", _COMING_UP | _ANSWERING)
        self._last_sequence = sequence
        self.state = ReplicaState.DRAINING
        return True

    def fence(self, epoch: int) -> bool:
        """Every epoch below `epoch` was replaced. Not so this one, or an ended replica: nothing happens."""
        if self.ended or epoch <= self.epoch:
            return False
        self._fence(f"epoch {self.epoch} was replaced by {epoch}")
        return True

    def raise_floor(self, floor: Version) -> None:
        """Nothing older than `floor` may be routed to any more. A lower floor than before is ignored."""
        if self.floor is None or floor > self.floor:
            self.floor = floor

    # What happened -----------------------------------------------------------------------------------------

    def started(self) -> None:
        """The process and its engine are up, without weights. A drain may have come before."""
        self._expect("started", frozenset({ReplicaState.STARTING, ReplicaState.DRAINING}))
        if self.state is ReplicaState.STARTING:
            self.state = ReplicaState.PULLING

    def loaded(self, version: Version) -> None:
        """`version` was verified, and samples from now on. Its caches are reset or tagged.

        Raises:
            ComponentError: it was not asked for, or is no newer than what answers now.
        """
        event = f"loaded({version})"
        self._expect(event, _ANSWERING | {ReplicaState.PULLING, ReplicaState.DRAINING})
        if self.target is None or version > self.target:
            raise self._refusal(event, f"it was told to take {self.target or 'nothing'}")
        if self.version is not None and version <= self.version:
            raise self._refusal(event, f"it answers under {self.version}, and versions only go up")
        self.version = version
        if self.state is not ReplicaState.DRAINING:
            reached = version == self.target
            self.state = ReplicaState.SERVING if reached else ReplicaState.UPDATING

    def accepted(self, count: int) -> None:
        """`count` requests were given to it.

        Raises:
            ComponentError: it is not routable.
        """
        if not self.routable:
            why = f"it is not routable: version {self.version}, floor {self.floor}"
            raise self._refusal(f"accepted({count})", why)
        self.in_flight += count

    def finished(self, count: int) -> None:
        """`count` requests left it, with a result of whatever kind.

        Raises:
            ComponentError: it did not have so many.
        """
        self._expect(f"finished({count})", _ANSWERING | {ReplicaState.DRAINING})
        if count > self.in_flight:
            raise self._refusal(f"finished({count})", f"only {self.in_flight} are in flight")
        self.in_flight -= count

    def drained(self) -> None:
        """Nothing runs any more.

        Raises:
            ComponentError: it was not draining, or requests are in flight.
        """
        self._expect("drained", frozenset({ReplicaState.DRAINING}))
        if self.in_flight:
            raise self._refusal("drained", f"{self.in_flight} requests are in flight")
        self.state = ReplicaState.STOPPED

    def fail(self, cause: str) -> None:
        """It broke. The first cause stays; an ended replica is left alone."""
        if not self.ended:
            self._fence(cause)

    # Inside ------------------------------------------------------------------------------------------------

    def _take(self, sequence: int, version: Version, event: str, allowed: frozenset[ReplicaState]) -> bool:
        if sequence <= self._last_sequence:
            return False
        self._expect(event, allowed)
        if self.target is not None and version <= self.target:
            raise self._refusal(event, f"it has or is taking {self.target}, and versions only go up")
        self._last_sequence = sequence
        self.target = version
        if self.state is ReplicaState.SERVING:
            self.state = ReplicaState.UPDATING
        return True

    def _fence(self, cause: str) -> None:
        self.state = ReplicaState.FENCED
        self.cause = cause

    def _expect(self, event: str, allowed: frozenset[ReplicaState]) -> None:
        if self.state is ReplicaState.FENCED:
            raise FencedError(f"{self.name}: {event} after it was fenced ({self.cause})")
        if self.state not in allowed:
            raise self._refusal(event, "this state has no such event")

    def _refusal(self, event: str, why: str) -> ComponentError:
        return ComponentError(f"{self.name}: {event} refused in state {self.state}: {why}")
