"""The replica's states: every event in every state, and random schedules of orders against a real engine."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamrl.config.schema.rollout import ScriptedConfig
from streamrl.engines.scripted import ScriptedEngine
from streamrl.errors import ComponentError, FencedError
from streamrl.scheduling.replica_state import ReplicaState, ReplicaStateMachine
from streamrl.types import GenerationRequest, GenerationResult, SamplingParams, UpdateMode, Version


def step(number: int, incarnation: int = 0) -> Version:
    return Version(incarnation, number)


def serving(version: int = 0) -> ReplicaStateMachine:
    """A replica that answers under `version`; its orders have used the sequence number 0."""
    replica = ReplicaStateMachine("replica-0", epoch=3)
    replica.started()
    replica.pull(0, step(version))
    replica.loaded(step(version))
    return replica


def in_state(state: ReplicaState) -> ReplicaStateMachine:
    replica = ReplicaStateMachine("replica-0", epoch=3)
    path: dict[ReplicaState, Callable[[], object]] = {
        ReplicaState.PULLING: lambda: (replica.started(), replica.pull(0, step(1))),
        ReplicaState.SERVING: lambda: replica.loaded(step(1)),
        ReplicaState.UPDATING: lambda: replica.update(1, step(2)),
        ReplicaState.DRAINING: lambda: replica.drain(2),
        ReplicaState.STOPPED: replica.drained,
    }
    if state is ReplicaState.FENCED:
        replica.fence(4)
        return replica
    for next_state, go in path.items():
        if replica.state is state:
            break
        go()
        assert replica.state is next_state
    return replica


EVENTS: dict[str, Callable[[ReplicaStateMachine], object]] = {
    "started": lambda replica: replica.started(),
    "pull": lambda replica: replica.pull(9, step(9)),
    "update": lambda replica: replica.update(9, step(9)),
    "loaded": lambda replica: replica.loaded(step(2)),
    "drain": lambda replica: replica.drain(9),
    "drained": lambda replica: replica.drained(),
}
LEGAL: dict[tuple[ReplicaState, str], ReplicaState] = {
    (ReplicaState.STARTING, "started"): ReplicaState.PULLING,
    (ReplicaState.STARTING, "pull"): ReplicaState.STARTING,
    (ReplicaState.STARTING, "update"): ReplicaState.STARTING,
    (ReplicaState.STARTING, "drain"): ReplicaState.DRAINING,
    (ReplicaState.PULLING, "pull"): ReplicaState.PULLING,
    (ReplicaState.PULLING, "update"): ReplicaState.PULLING,
    (ReplicaState.PULLING, "drain"): ReplicaState.DRAINING,
    (ReplicaState.SERVING, "update"): ReplicaState.UPDATING,
    (ReplicaState.SERVING, "drain"): ReplicaState.DRAINING,
    (ReplicaState.UPDATING, "update"): ReplicaState.UPDATING,
    (ReplicaState.UPDATING, "loaded"): ReplicaState.SERVING,
    (ReplicaState.UPDATING, "drain"): ReplicaState.DRAINING,
    (ReplicaState.DRAINING, "started"): ReplicaState.DRAINING,
    (ReplicaState.DRAINING, "loaded"): ReplicaState.DRAINING,
    (ReplicaState.DRAINING, "drain"): ReplicaState.DRAINING,
    (ReplicaState.DRAINING, "drained"): ReplicaState.STOPPED,
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", ReplicaState)
def test_invariant_6_every_event_in_every_state_is_in_the_table_or_refused_by_name(
    state: ReplicaState, event: str
) -> None:
    replica = in_state(state)
    before = vars(replica).copy()
    if (state, event) in LEGAL:
        EVENTS[event](replica)
        assert replica.state is LEGAL[state, event]
        return
    with pytest.raises(ComponentError, match=f"replica-0: {event}") as refusal:
        EVENTS[event](replica)
    assert state in str(refusal.value)
    assert vars(replica) == before


@pytest.mark.parametrize("state", sorted(set(ReplicaState) - {ReplicaState.STOPPED, ReplicaState.FENCED}))
def test_invariant_6_no_state_is_without_an_exit(state: ReplicaState) -> None:
    fenced, failed, drained = in_state(state), in_state(state), in_state(state)
    assert fenced.fence(4)
    failed.fail("out of memory")
    assert fenced.state is failed.state is ReplicaState.FENCED
    assert failed.cause == "out of memory"
    drained.drain(9)
    drained.drained()
    assert drained.state is ReplicaState.STOPPED


def test_an_ended_replica_keeps_its_first_cause_and_refuses_to_act() -> None:
    replica = serving()
    replica.fail("engine: bad alloc")
    replica.fail("later symptom")
    assert not replica.fence(9)
    assert replica.cause == "engine: bad alloc"
    with pytest.raises(FencedError, match=r"finished.*engine: bad alloc"):
        replica.finished(0)


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_fence_for_an_older_or_equal_epoch_changes_nothing(epoch: int) -> None:
    replica = serving()
    assert not replica.fence(epoch)
    assert replica.state is ReplicaState.SERVING


def test_invariant_6_a_replica_is_routable_only_at_or_above_the_floor() -> None:
    replica = ReplicaStateMachine("replica-0", epoch=1)
    replica.raise_floor(step(4))
    replica.started()
    replica.pull(0, step(3))
    assert not replica.routable
    replica.loaded(step(3))
    assert not replica.routable
    with pytest.raises(ComponentError, match=r"accepted\(1\) refused in state serving: .*0\.3, floor 0\.4"):
        replica.accepted(1)
    replica.update(1, step(4))
    assert not replica.routable
    replica.loaded(step(4))
    assert replica.routable
    replica.raise_floor(step(2))
    assert replica.floor == step(4)
    replica.raise_floor(step(0, incarnation=1))
    assert not replica.routable


@pytest.mark.parametrize("version", [step(5), step(4), step(0)])
def test_invariant_6_a_downgrade_or_replay_is_refused(version: Version) -> None:
    replica = serving(5)
    with pytest.raises(ComponentError, match="versions only go up"):
        replica.update(7, version)
    assert replica.target == replica.version == step(5)
    assert replica.update(7, step(0, incarnation=1))


def test_invariant_6_an_acknowledgement_must_be_of_something_newer_that_was_asked_for() -> None:
    replica = serving(5)
    replica.update(1, step(8))
    with pytest.raises(ComponentError, match=r"told to take 0\.8"):
        replica.loaded(step(9))
    with pytest.raises(ComponentError, match=r"answers under 0\.5"):
        replica.loaded(step(5))
    replica.loaded(step(7))
    assert (replica.state, replica.version) == (ReplicaState.UPDATING, step(7))
    replica.loaded(step(8))
    assert replica.state is ReplicaState.SERVING


def test_an_update_that_overtakes_the_pull_is_taken_in_its_place() -> None:
    replica = ReplicaStateMachine("replica-0", epoch=1)
    assert replica.update(2, step(6))
    assert not replica.pull(1, step(5))
    replica.started()
    replica.loaded(step(6))
    assert (replica.state, replica.version) == (ReplicaState.SERVING, step(6))


def test_a_replica_does_not_stop_before_its_last_request_is_finished() -> None:
    replica = serving()
    replica.accepted(3)
    replica.drain(1)
    replica.finished(2)
    with pytest.raises(ComponentError, match="drained refused in state draining: 1 requests are in flight"):
        replica.drained()
    with pytest.raises(ComponentError, match="only 1 are in flight"):
        replica.finished(2)
    replica.finished(1)
    replica.drained()


class ReplicaUnderRandomOrders(RuleBasedStateMachine):
    """A replica with a scripted engine. Orders are issued in order, delivered in any, any number of times."""

    @initialize(mode=st.sampled_from(UpdateMode))
    def launch(self, mode: UpdateMode) -> None:
        self.mode = mode
        self.replica = ReplicaStateMachine("replica-0", epoch=1)
        config = ScriptedConfig(latency_steps=4, heavy_tail=0.8, error_rate=0.1)
        self.engine = ScriptedEngine(config, slots=3, vocab_size=32, eos_token_id=1, version=step(-1))
        self.orders: list[Callable[[], bool]] = []
        self.newest = -1
        self.delivered = -1
        self.submitted: set[str] = set()
        self.results: dict[str, GenerationResult] = {}
        self.sampled_by: list[Version] = []
        self.acknowledged: list[Version] = []
        self.loading = step(-1)

    @rule(skip=st.integers(1, 3), draining=st.integers(0, 15))
    def issue_an_order(self, skip: int, draining: int) -> None:
        sequence, replica = len(self.orders), self.replica
        self.newest += skip
        version = step(self.newest)
        if draining == 0:
            self.orders.append(lambda: replica.drain(sequence))
        elif sequence == 0:
            self.orders.append(lambda: replica.pull(sequence, version))
        else:
            self.orders.append(lambda: replica.update(sequence, version))

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def deliver_any_order_again_or_late(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(0, len(self.orders) - 1))
        fresh = sequence > self.delivered
        draining = self.replica.state is ReplicaState.DRAINING
        try:
            taken = self.orders[sequence]()
        except ComponentError:
            assert fresh
            assert self.replica.ended or draining
            return
        assert taken == fresh
        self.delivered = max(self.delivered, sequence)

    @precondition(lambda self: self.replica.state is ReplicaState.STARTING)
    @rule()
    def start(self) -> None:
        self.replica.started()

    @precondition(lambda self: self.replica.target is not None and not self.replica.ended)
    @rule()
    def load_the_target(self) -> None:
        if self.replica.state is not ReplicaState.STARTING and self.loading < self.replica.target:
            self.engine.load_weights({}, self.replica.target, self.mode)
            self.loading = self.replica.target
            self.acknowledge()

    def acknowledge(self) -> None:
        version = self.engine.version
        if version > (self.replica.version or step(-1)) and not self.replica.ended:
            self.replica.loaded(version)
            self.acknowledged.append(version)

    @precondition(lambda self: self.replica.routable)
    @rule(count=st.integers(1, 5))
    def submit(self, count: int) -> None:
        requests = [
            GenerationRequest(
                request_id=str(len(self.submitted) + index),
                prompt_ids=np.array([3, 4], np.int32),
                seed=len(self.submitted) + index,
                sampling=SamplingParams(max_new_tokens=8),
                stop_token_ids=(1,),
            )
            for index in range(count)
        ]
        self.replica.accepted(count)
        self.engine.submit(requests)
        self.submitted.update(request.request_id for request in requests)

    @rule()
    def advance_the_engine(self) -> None:
        self.sampled_by.append(self.engine.version)
        results = self.engine.step()
        for result in results:
            assert result.request_id not in self.results
            self.results[result.request_id] = result
            self.check_marks(result)
        if not self.replica.ended and results:
            self.replica.finished(len(results))
        self.acknowledge()

    def check_marks(self, result: GenerationResult) -> None:
        """Each token is marked with the version that the engine had in the step that sampled it."""
        length = len(result.token_ids)
        newest_first = result.version_spans[::-1]
        marks = [next(span.version for span in newest_first if span.start <= token) for token in range(length)]
        assert marks == self.sampled_by[len(self.sampled_by) - length :]

    @precondition(lambda self: self.replica.state is ReplicaState.DRAINING and not self.replica.in_flight)
    @rule()
    def stop(self) -> None:
        self.replica.drained()

    @rule(newer=st.sampled_from([False] * 15 + [True]))
    def fence(self, newer: bool) -> None:
        live = not self.replica.ended
        assert self.replica.fence(1 + newer) == (live and newer)

    @invariant()
    def no_request_is_lost(self) -> None:
        stats = self.engine.stats()
        in_engine = stats.running + stats.waiting
        assert len(self.submitted) == len(self.results) + in_engine
        if not self.replica.ended:
            assert self.replica.in_flight == in_engine

    @invariant()
    def it_answers_under_the_version_that_it_acknowledged(self) -> None:
        assert self.acknowledged == sorted(set(self.acknowledged))
        if self.replica.routable:
            assert self.engine.version == self.replica.version

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.has_work:
            self.advance_the_engine()
        assert set(self.results) == self.submitted
        if self.replica.ended:
            return
        self.replica.drain(len(self.orders))
        self.replica.drained()
        assert self.replica.state is ReplicaState.STOPPED


def test_invariant_6_no_request_is_lost_and_none_has_two_versions_without_a_mark() -> None:
    run_state_machine_as_test(
        ReplicaUnderRandomOrders,
        settings=settings(max_examples=100, stateful_step_count=40, deadline=None),
    )
