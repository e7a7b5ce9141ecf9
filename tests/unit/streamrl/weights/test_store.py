"""The books of the versions: only upwards, kept while needed, and one silent replica holds nobody back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamrl.clock import VirtualClock
from streamrl.errors import DataError, FencedError
from streamrl.types import Version
from streamrl.weights.manifest import AdapterFacts, TensorEntry, WeightManifest, base_version, combined_digest, sign
from streamrl.weights.store import WeightStore

KEY = b"k" * 32
DEADLINE = 10.0


def build_manifest(
    *, step: int, incarnation: int = 0, run_id: str = "run", key: bytes = KEY, adapters: AdapterFacts | None = None
) -> WeightManifest:
    shapes = {"w.weight": (2, 1)} if adapters is None else {"w.lora_A.weight": (1, 1), "w.lora_B.weight": (2, 1)}
    entries = tuple(
        TensorEntry(name, "float32", shape, 8 * place, 4 * shape[0], "00" * 8)
        for place, (name, shape) in enumerate(shapes.items())
    )
    version = Version(incarnation, step)
    manifest = WeightManifest(
        run_id=run_id,
        version=version,
        source="shm",
        location=f"/dev/shm/{version}",
        tensors=entries,
        total_bytes=16,
        digest=combined_digest(entries),
        adapters=adapters,
    )
    return sign(manifest, key)


def build_adapters(*, step: int, incarnation: int = 0) -> WeightManifest:
    """A version that holds adapters to the base of its incarnation."""
    base = build_manifest(step=-1, incarnation=incarnation)
    return build_manifest(step=step, incarnation=incarnation, adapters=AdapterFacts(base=base, rank=1, alpha=2.0))


def build_store(*, steps: int = 0, replicas: tuple[str, ...] = ()) -> tuple[WeightStore, VirtualClock]:
    clock = VirtualClock()
    store = WeightStore("run", KEY, clock, DEADLINE)
    for replica in replicas:
        store.join(replica)
    for step in range(steps):
        store.publish(build_manifest(step=step))
    return store, clock


def test_the_newest_version_is_given_to_who_has_an_older_one():
    store, _ = build_store()
    assert store.latest is None
    assert store.newer_than(None) is None
    store.publish(build_manifest(step=0))
    store.publish(build_manifest(step=1))
    assert store.newer_than(None).version == Version(0, 1)
    assert store.newer_than(Version(0, 0)).version == Version(0, 1)
    assert store.newer_than(Version(0, 1)) is None
    assert store.newer_than(Version(1, 0)) is None


@pytest.mark.parametrize("old", [(0, 4), (0, 5), (0, 99)])
def test_replay_and_downgrade_are_refused(old):
    store, _ = build_store()
    store.publish(build_manifest(incarnation=1, step=5) if old == (0, 99) else build_manifest(step=5))
    with pytest.raises(FencedError, match=r"replay and downgrade are refused"):
        store.publish(build_manifest(incarnation=old[0], step=old[1]))


def test_a_resumed_learner_publishes_an_earlier_step_under_a_higher_incarnation():
    store, _ = build_store(steps=9)
    store.publish(build_manifest(incarnation=1, step=2))
    assert store.newer_than(Version(0, 8)).version == Version(1, 2)


def test_foreign_manifests_are_refused():
    store, _ = build_store(steps=1)
    with pytest.raises(DataError, match=r"signature"):
        store.publish(build_manifest(step=5, key=b"x" * 32))
    with pytest.raises(DataError, match=r"belongs to run 'other'"):
        store.publish(build_manifest(step=5, run_id="other"))
    assert store.latest.version == Version(0, 0)


def test_a_superseded_version_is_retirable_once():
    store, _ = build_store(steps=3)
    assert store.retirable() == [Version(0, 0), Version(0, 1)]
    assert store.retirable() == []
    assert store.kept == [Version(0, 2)]


def test_a_version_is_kept_from_its_loading_until_a_newer_one_is_acknowledged():
    """A replica may serve from its memory."""
    store, _ = build_store(steps=1, replicas=("a", "b"))
    store.newer_than(None, "a")
    store.publish(build_manifest(step=1))
    assert store.retirable() == []
    store.acknowledge("a", Version(0, 0))
    assert store.retirable() == []
    store.newer_than(Version(0, 0), "a")
    assert store.retirable() == []
    store.acknowledge("a", Version(0, 1))
    assert store.retirable() == [Version(0, 0)]


def test_a_version_that_is_served_is_free_when_its_replica_leaves_or_is_late():
    for act in (lambda store, clock: store.leave("a"), lambda store, clock: clock.advance(DEADLINE)):
        store, clock = build_store(steps=1, replicas=("a",))
        store.acknowledge("a", Version(0, 0))
        store.publish(build_manifest(step=1))
        assert store.retirable() == []
        act(store, clock)
        assert store.retirable() == [Version(0, 0)]


def test_a_version_in_loading_is_free_when_its_replica_asks_again_or_leaves():
    for act in (lambda store: store.newer_than(None, "a"), lambda store: store.leave("a")):
        store, _ = build_store(steps=1, replicas=("a",))
        store.newer_than(None, "a")
        store.publish(build_manifest(step=1))
        act(store)
        assert store.retirable() == [Version(0, 0)]


def test_an_anonymous_reader_holds_nothing():
    store, _ = build_store(steps=1)
    store.newer_than(None)
    store.publish(build_manifest(step=1))
    assert store.retirable() == [Version(0, 0)]


def test_a_pinned_version_is_kept_for_each_of_its_holders():
    store, _ = build_store(steps=1)
    assert store.pin(Version(0, 0), "evaluation").version == Version(0, 0)
    store.pin(Version(0, 0), "export")
    store.publish(build_manifest(step=1))
    store.unpin(Version(0, 0), "evaluation")
    assert store.retirable() == []
    store.unpin(Version(0, 0), "export")
    store.unpin(Version(0, 0), "export")
    assert store.retirable() == [Version(0, 0)]


def test_a_version_that_was_named_retirable_cannot_be_pinned():
    store, _ = build_store(steps=2)
    store.retirable()
    with pytest.raises(DataError, match=r"version 0\.0, which is not kept; there are: 0\.1"):
        store.pin(Version(0, 0), "evaluation")


def test_acknowledgements_only_rise_and_only_of_what_exists():
    store, _ = build_store(steps=3, replicas=("a",))
    store.acknowledge("a", Version(0, 1))
    store.acknowledge("a", Version(0, 1))
    assert store.acknowledged == {"a": Version(0, 1)}
    with pytest.raises(FencedError, match=r"a goes back from version 0\.1 to 0\.0"):
        store.acknowledge("a", Version(0, 0))
    with pytest.raises(DataError, match=r"a acknowledges version 0\.7, the newest is 0\.2"):
        store.acknowledge("a", Version(0, 7))


def test_who_has_not_joined_is_fenced():
    store, _ = build_store(steps=1, replicas=("a",))
    store.leave("a")
    store.leave("a")
    with pytest.raises(FencedError, match=r"a has not joined"):
        store.acknowledge("a", Version(0, 0))
    with pytest.raises(FencedError, match=r"a has not joined"):
        store.newer_than(None, "a")


def test_invariant_7_a_replica_that_does_not_acknowledge_is_late_and_named():
    store, clock = build_store(replicas=("slow", "quick"))
    clock.advance(100)
    assert store.late() == []
    store.publish(build_manifest(step=0))
    store.acknowledge("quick", Version(0, 0))
    assert store.next_deadline() == 110
    clock.advance(9.5)
    assert store.late() == []
    assert [late.replica for late in store.late(now=110.0)] == ["slow"]
    clock.advance(1)
    (late,) = store.late()
    assert (late.replica, late.acknowledged, late.latest, late.waited_s) == (
        "slow",
        None,
        Version(0, 0),
        10.5,
    )


def test_newer_versions_do_not_extend_the_deadline_of_a_silent_replica():
    store, clock = build_store(steps=1, replicas=("a",))
    store.acknowledge("a", Version(0, 0))
    for step in range(1, 6):
        store.publish(build_manifest(step=step))
        clock.advance(2.5)
    assert [late.replica for late in store.late()] == ["a"]


def test_progress_starts_the_deadline_again():
    store, clock = build_store(steps=2, replicas=("a",))
    clock.advance(9)
    store.acknowledge("a", Version(0, 0))
    clock.advance(9)
    assert store.late() == []
    store.acknowledge("a", Version(0, 1))
    clock.advance(99)
    assert store.late() == []
    assert store.next_deadline() is None


def test_repeating_an_old_acknowledgement_is_no_progress():
    store, clock = build_store(steps=2, replicas=("a",))
    store.acknowledge("a", Version(0, 0))
    clock.advance(9)
    store.acknowledge("a", Version(0, 0))
    clock.advance(1)
    assert [late.replica for late in store.late()] == ["a"]


def test_a_late_replica_holds_no_memory_back():
    store, clock = build_store(steps=1, replicas=("a",))
    store.newer_than(None, "a")
    store.publish(build_manifest(step=1))
    clock.advance(DEADLINE)
    assert store.retirable() == [Version(0, 0)]


def test_a_replica_that_evaluates_is_not_late_and_gets_its_time_back():
    store, clock = build_store(steps=1, replicas=("a",))
    store.acknowledge("a", Version(0, 0))
    store.pin(Version(0, 0), "a")
    store.publish(build_manifest(step=1))
    clock.advance(50)
    assert store.late() == []
    assert store.next_deadline() is None
    store.unpin(Version(0, 0), "a")
    clock.advance(9)
    assert store.late() == []
    clock.advance(1)
    assert [late.replica for late in store.late()] == ["a"]


def test_a_replica_that_joins_again_starts_from_nothing():
    store, clock = build_store(steps=2, replicas=("a",))
    store.acknowledge("a", Version(0, 1))
    clock.advance(50)
    store.join("a")
    assert store.acknowledged == {"a": None}
    assert store.late() == []
    store.acknowledge("a", Version(0, 0))


def test_a_base_is_kept_with_the_versions_that_need_it_and_retired_after_the_last():
    store, _ = build_store(replicas=("a",))
    for step in range(3):
        store.publish(build_adapters(step=step))
    assert store.retirable() == [Version(0, 0), Version(0, 1)]
    assert store.newer_than(None, "a").version == Version(0, 2)
    store.publish(build_adapters(incarnation=1, step=2))
    assert store.kept == [Version(0, -1), Version(0, 2), Version(1, -1), Version(1, 2)]
    assert store.retirable() == []
    store.acknowledge("a", Version(0, 2))
    assert store.retirable() == []
    store.acknowledge("a", Version(1, 2))
    assert store.retirable() == [Version(0, -1), Version(0, 2)]
    store.publish(build_manifest(incarnation=2, step=2))
    store.acknowledge("a", Version(2, 2))
    assert store.retirable() == [Version(1, -1), Version(1, 2)]
    assert store.kept == [Version(2, 2)]


def test_a_base_is_no_version_that_anybody_serves():
    store, _ = build_store()
    with pytest.raises(DataError, match=r"version 1\.-1 is a base"):
        store.publish(build_manifest(incarnation=1, step=-1))
    store.publish(build_adapters(step=0))
    with pytest.raises(DataError):
        store.pin(base_version(Version(0, 0)), "evaluation")


class StoreMachine(RuleBasedStateMachine):
    """Any order of events: what may be in use is kept, what is kept is bounded, order is kept."""

    replicas = st.sampled_from(["a", "b", "c"])

    def __init__(self) -> None:
        super().__init__()
        self.store, self.clock = build_store()
        self.next = Version(0, 0)
        self.bases: dict[Version, Version] = {}
        self.serving: dict[str, Version | None] = {}
        self.loading: dict[str, tuple[Version, float]] = {}
        self.pins: set[tuple[Version, str]] = set()
        self.taken_back: set[str] = set()
        """Replicas whose version was retired before they acknowledged it, being late: they hold its memory alone."""
        self.retired: set[Version] = set()

    @rule(resume=st.booleans())
    def publish(self, resume):
        """Every other learner publishes adapters."""
        version = Version(self.next.incarnation + 1, 0) if resume else self.next
        build = build_adapters if version.incarnation % 2 else build_manifest
        self.store.publish(build(incarnation=version.incarnation, step=version.step))
        if version.incarnation % 2:
            self.bases[version] = base_version(version)
        self.next = Version(version.incarnation, version.step + 1)

    @rule(replica=replicas)
    def join(self, replica):
        self.store.join(replica)
        self.serving[replica] = None
        self.loading.pop(replica, None)

    @rule(replica=replicas)
    def leave(self, replica):
        self.store.leave(replica)
        self.serving.pop(replica, None)
        self.loading.pop(replica, None)

    @rule(replica=replicas)
    def pull(self, replica):
        if replica in self.serving:
            manifest = self.store.newer_than(self.serving[replica], replica)
            if manifest is not None:
                assert manifest.version not in self.retired
                self.loading[replica] = (manifest.version, self.clock.now())

    @rule(replica=replicas)
    def acknowledge(self, replica):
        if replica in self.loading:
            version, _ = self.loading.pop(replica)
            self.store.acknowledge(replica, version)
            self.serving[replica] = version
            (self.taken_back.add if version in self.retired else self.taken_back.discard)(replica)

    @rule(holder=st.sampled_from(["evaluation", "export"]))
    def pin_latest(self, holder):
        if self.store.latest is not None:
            self.store.pin(self.store.latest.version, holder)
            self.pins.add((self.store.latest.version, holder))

    @rule()
    def unpin_one(self):
        if self.pins:
            version, holder = min(self.pins)
            self.store.unpin(version, holder)
            self.pins.remove((version, holder))

    @rule()
    def retire(self):
        gone = self.store.retirable()
        assert not self.retired & set(gone)
        self.retired |= set(gone)
        assert len(self.served()) <= 1 + 2 * len(self.serving) + len({version for version, _ in self.pins})

    def served(self) -> set[Version]:
        """What is kept, without bases."""
        return {version for version in self.store.kept if version.step >= 0}

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def fence_the_late(self):
        for late in self.store.late():
            assert self.serving[late.replica] != self.store.latest.version
            self.leave(late.replica)
        assert not self.store.late()

    @invariant()
    def what_may_be_in_use_is_kept(self):
        live = {version for version, since in self.loading.values() if since > self.clock.now() - DEADLINE} | {
            version for version, _ in self.pins
        }
        late = {one.replica for one in self.store.late()}
        live |= {version for name, version in self.serving.items() if version and name not in late | self.taken_back}
        if self.store.latest is not None:
            live.add(self.store.latest.version)
        assert live <= set(self.store.kept)
        assert not live & self.retired

    @invariant()
    def a_base_is_there_as_long_as_a_version_that_needs_it_and_goes_with_the_last(self):
        needed = {self.bases[version] for version in self.served() if version in self.bases}
        bases = set(self.store.kept) - self.served()
        assert needed <= bases
        assert not bases & self.retired
        # The last ones are retired in the same call.
        assert all(base in needed or self.waits_to_be_retired(base) for base in bases)

    def waits_to_be_retired(self, base: Version) -> bool:
        return not self.retired.issuperset(version for version, its in self.bases.items() if its == base)

    @invariant()
    def who_serves_the_latest_owes_nothing(self):
        owes = self.store.next_deadline() is not None
        latest = self.store.latest
        behind = latest is not None and any(version != latest.version for version in self.serving.values())
        assert owes == behind


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
