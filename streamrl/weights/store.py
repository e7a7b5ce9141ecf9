"""Which version is newest, who still needs an older one, and which replica is late.

    published -> latest -> superseded -> retirable -> forgotten
                              |  ^
      loading, served, pinned +--+

Guarantees: versions only rise, and only manifests signed for this run come in. A version is named by `retirable`
exactly once, when it is not the newest, nobody has pinned it and no joined replica may be loading it or serving from
its memory; after that it is handed out to nobody. At most 1 + 2 * replicas + pins versions are kept, and a replica that
does not answer keeps its versions for the deadline at most. The base of versions that hold adapters is kept as long as
one of them is, and named by `retirable` after the last. Pure: it owns no memory, no tasks and no time but the clock it
is given.
"""

from dataclasses import dataclass

from streamrl.clock import Clock
from streamrl.errors import DataError, FencedError
from streamrl.types import Version
from streamrl.weights.manifest import WeightManifest, is_base, verify


@dataclass(frozen=True, slots=True)
class LateReplica:
    """A replica that owes an acknowledgement. `acknowledged` is its last one, `latest` what it could have
    taken."""

    replica: str
    acknowledged: Version | None
    latest: Version
    waited_s: float


@dataclass(slots=True)
class _Replica:
    """behind_since: when this replica began to owe an acknowledgement, None while it owes none."""

    acknowledged: Version | None = None
    behind_since: float | None = None
    loading: Version | None = None
    loading_since: float = 0.0


class WeightStore:
    """The books of the published versions.

    Example:
        store.publish(manifest)                                 # learner
        manifest = store.newer_than(version, replica)           # replica: take it up, then
        store.acknowledge(replica, manifest.version)
        for version in store.retirable(): publisher.unlink(version)
        for late in store.late(): fence(late.replica); store.leave(late.replica)
    """

    def __init__(self, run_id: str, key: bytes, clock: Clock, deadline_s: float) -> None:
        self._run_id = run_id
        self._key = key
        self._clock = clock
        self._deadline_s = deadline_s
        self._kept: dict[Version, WeightManifest] = {}
        self._bases: set[Version] = set()
        """Of the versions that are kept, and of those that were until `retirable` was asked last."""
        self._latest: WeightManifest | None = None
        self._replicas: dict[str, _Replica] = {}
        self._pins: dict[Version, set[str]] = {}

    @property
    def latest(self) -> WeightManifest | None:
        """The newest version, None before the first."""
        return self._latest

    @property
    def acknowledged(self) -> dict[str, Version | None]:
        """The version that each joined replica serves, None before its first."""
        return {name: replica.acknowledged for name, replica in self._replicas.items()}

    @property
    def kept(self) -> list[Version]:
        """Versions whose bytes must not go away yet, bases among them, oldest first."""
        return sorted(self._kept.keys() | self._bases)

    def publish(self, manifest: WeightManifest) -> None:
        """Make a version the newest. Raises DataError (not ours, changed) and FencedError (replay,
        downgrade)."""
        verify(manifest, self._key, self._run_id)
        if is_base(manifest.version):
            raise DataError(f"weights: version {manifest.version} is a base of adapters: it is served by nobody alone")
        if self._latest is not None and manifest.version <= self._latest.version:
            raise FencedError(
                f"weights: version {manifest.version} is not newer than {self._latest.version}: replay and "
                "downgrade are refused; a learner that resumes publishes under a higher incarnation"
            )
        self._latest = manifest
        self._kept[manifest.version] = manifest
        if manifest.base is not None:
            self._bases.add(manifest.base.version)
        for replica in self._replicas.values():
            if replica.behind_since is None:
                replica.behind_since = self._clock.now()

    def newer_than(self, version: Version | None, replica: str | None = None) -> WeightManifest | None:
        """The newest version if it is above `version` (None: any), else None.

        A version that is given to a joined `replica` is kept until that acknowledges, asks again, leaves or
        is late. Without a name nothing is kept. Raises FencedError for a replica that has not joined.
        """
        if self._latest is None or (version is not None and self._latest.version <= version):
            return None
        if replica is not None:
            state = self._joined(replica)
            state.loading, state.loading_since = self._latest.version, self._clock.now()
        return self._latest

    def acknowledge(self, replica: str, version: Version) -> None:
        """The replica serves `version` from now on. To say it twice changes nothing.

        Raises FencedError for a replica that has not joined or goes back, DataError for a version that was
        never published.
        """
        state = self._joined(replica)
        if self._latest is None or version > self._latest.version:
            newest = self._latest.version if self._latest is not None else "none"
            raise DataError(f"weights: {replica} acknowledges version {version}, the newest is {newest}")
        if state.acknowledged == version:
            return
        if state.acknowledged is not None and version < state.acknowledged:
            raise FencedError(f"weights: {replica} goes back from version {state.acknowledged} to {version}: refused")
        state.acknowledged = version
        if state.loading is not None and state.loading <= version:
            state.loading = None
        state.behind_since = None if version == self._latest.version else self._clock.now()

    def join(self, replica: str) -> None:
        """A replica, or its successor of the same name, starts: it owes an acknowledgement from now on."""
        self._replicas[replica] = _Replica(behind_since=self._clock.now() if self._latest is not None else None)

    def leave(self, replica: str) -> None:
        """Forget a replica and what it holds, its pins too. A name that has not joined is no error."""
        self._replicas.pop(replica, None)
        for version in [version for version, holders in self._pins.items() if replica in holders]:
            self.unpin(version, replica)

    def pin(self, version: Version, holder: str) -> WeightManifest:
        """Keep a version until `unpin`; an evaluation does. A replica that holds a pin is not late meanwhile:
        the evaluation has a deadline of its own. Raises DataError when the version is not kept any more."""
        if version not in self._kept:
            kept = ", ".join(str(kept) for kept in self.kept) or "none"
            raise DataError(f"weights: {holder} pins version {version}, which is not kept; there are: {kept}")
        self._pins.setdefault(version, set()).add(holder)
        return self._kept[version]

    def unpin(self, version: Version, holder: str) -> None:
        """Give a pin back. One that does not exist is no error."""
        holders = self._pins.get(version, set())
        holders.discard(holder)
        if not holders:
            self._pins.pop(version, None)
        state = self._replicas.get(holder)
        if state is not None and state.behind_since is not None:
            state.behind_since = self._clock.now()

    def retirable(self) -> list[Version]:
        """Versions that nobody needs any more, oldest first; each is named once and then forgotten here."""
        needed = self._needed()
        gone = self._kept.keys() - needed
        for version in gone:
            del self._kept[version]
        bases = {manifest.base.version for manifest in self._kept.values() if manifest.base is not None}
        gone |= self._bases - bases
        self._bases &= bases
        return sorted(gone)

    def late(self, now: float | None = None) -> list[LateReplica]:
        """Replicas that have owed an acknowledgement for the deadline or longer at `now` (default: the
        clock's)."""
        now = self._clock.now() if now is None else now
        if self._latest is None:
            return []
        return [
            LateReplica(name, state.acknowledged, self._latest.version, now - state.behind_since)
            for name, state in self._replicas.items()
            if state.behind_since is not None
            and now >= state.behind_since + self._deadline_s
            and not self._holds_pin(name)
        ]

    def next_deadline(self) -> float | None:
        """The earliest time at which a replica is late unless something happens; None when none owes
        anything."""
        times = [
            state.behind_since + self._deadline_s
            for name, state in self._replicas.items()
            if state.behind_since is not None and not self._holds_pin(name)
        ]
        return min(times, default=None)

    def _needed(self) -> set[Version]:
        needed = set(self._pins)
        if self._latest is not None:
            needed.add(self._latest.version)
        oldest = self._clock.now() - self._deadline_s
        for state in self._replicas.values():
            if state.loading is not None and state.loading_since > oldest:
                needed.add(state.loading)
            if state.acknowledged is not None and (state.behind_since is None or state.behind_since > oldest):
                needed.add(state.acknowledged)
        return needed

    def _joined(self, replica: str) -> _Replica:
        state = self._replicas.get(replica)
        if state is None:
            raise FencedError(f"weights: {replica} has not joined the weight store, or was fenced: it must start again")
        return state

    def _holds_pin(self, name: str) -> bool:
        return any(name in holders for holders in self._pins.values())
