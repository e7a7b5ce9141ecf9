"""Router replay: the learner sends tokens to the experts that the engine chose, with the weights of its own router."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.learner.routed import CHOSEN, EXPERTS, LAYERS, routed_model, routed_rows, with_other_routers
from transformers import PreTrainedModel

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import ExecutionConfig, OptimizerConfig
from streamrl.errors import DataError
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, select_rows, training_order
from streamrl.learner.fsdp import on_policy
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.types import RolloutRows


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


def packs_of(rows: RolloutRows, max_tokens: int = 500, share_from: int | None = 4) -> list[PackedBatch]:
    return pack(rows, np.ones(rows.num_rows), max_tokens, share_from=share_from)


def policy_of(model: PreTrainedModel, *, replays: bool) -> PolicyModel:
    policy = PolicyModel(model)
    policy.replays_routes = replays
    return policy


@torch.no_grad()
def mismatch_kl(model: PreTrainedModel, rows: RolloutRows, *, replays: bool) -> float:
    """The k3 estimate, as the metric `mismatch/kl` has it."""
    policy = policy_of(model, replays=replays)
    far = torch.cat([policy(one, 1.0)[0].float() - one.rollout_logprobs for one in packs_of(rows)])
    return float((far.exp() - 1 - far).mean())


def test_routers_that_are_a_little_off_leave_no_mismatch_with_replay_and_a_large_one_without() -> None:
    engine_model = routed_model(undecided=True)
    rows = routed_rows(engine_model)
    replayed, own = (
        mismatch_kl(with_other_routers(engine_model, 2e-5), rows, replays=replays) for replays in (True, False)
    )
    print(f"mismatch/kl: {replayed} with replay, {own} without")
    assert replayed <= 1e-6
    assert own > 1e-4


def test_in_bfloat16_replay_leaves_rounding_and_its_absence_other_experts() -> None:
    model = routed_model(undecided=True)
    rows = routed_rows(model)
    replayed, own = (
        mismatch_kl(with_other_routers(model, 0.0).bfloat16(), rows, replays=replays) for replays in (True, False)
    )
    print(f"mismatch/kl in bfloat16: {replayed} with replay, {own} without")
    assert own > 5 * replayed


@pytest.mark.parametrize("max_tokens", [60, 500])
@pytest.mark.parametrize("share_from", [4, None])
def test_routes_stay_with_their_tokens_however_rows_are_packed(max_tokens: int, share_from: int | None) -> None:
    rows = routed_rows(routed_model())
    draw = np.random.default_rng(1)
    # Routes that no router would choose, the same for a group's prompt, another one for each token behind it.
    rows = replace(rows, routes=_random_routes(rows, draw))
    policy = policy_of(routed_model(), replays=True)
    with torch.no_grad():
        found = torch.cat([policy(one, 1.0)[0] for one in packs_of(rows, max_tokens, share_from)])
        alone = [packs_of(select_rows(rows, np.array([row])), 500, None)[0] for row in range(rows.num_rows)]
        expected = torch.cat([policy(one, 1.0)[0] for one in alone])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    own = policy_of(routed_model(), replays=False)
    with torch.no_grad():
        assert not torch.allclose(own(alone[0], 1.0)[0], policy(alone[0], 1.0)[0], atol=1e-3)


def _random_routes(rows: RolloutRows, draw: np.random.Generator) -> np.ndarray:
    each = np.stack([draw.permutation(EXPERTS)[:CHOSEN] for _ in range(rows.num_tokens * LAYERS)])
    routes = each.reshape(rows.num_tokens, LAYERS, CHOSEN).astype(np.int16)
    for row in range(rows.num_rows):
        first = int(np.flatnonzero(rows.group == rows.group[row])[0])
        prompt = int((rows.token_origin[rows.offsets[first] : rows.offsets[first + 1]] == 0).sum())
        start, other = rows.offsets[row], rows.offsets[first]
        routes[start : start + prompt] = routes[other : other + prompt]
    return routes


def test_a_prompt_that_went_to_other_experts_is_not_shared() -> None:
    rows = routed_rows(routed_model())
    shared = sum(one.num_tokens for one in packs_of(rows))
    routes = rows.routes.copy()
    routes[rows.offsets[-2]] = (routes[rows.offsets[-2]] + 1) % EXPERTS
    apart = packs_of(replace(rows, routes=routes))
    whole = rows.lengths()[-1] - 1
    prompt = int((rows.token_origin[rows.offsets[-2] :] == 0).sum())
    assert sum(one.num_tokens for one in apart) == shared + prompt
    assert whole > prompt


def test_the_gradient_flows_to_routers_and_a_layer_computed_again_takes_the_same_experts(group: LearnerGroup) -> None:
    rows = routed_rows(routed_model(undecided=True))
    found = []
    for again in (False, True):
        other = with_other_routers(routed_model(undecided=True), 1e-3)
        policy = ShardedPolicy(other, group, torch.float32, ExecutionConfig(activation_checkpointing=again))
        policy.module.replays_routes = True
        for one in packs_of(rows):
            policy.backward(policy.module(one, 1.0)[0].sum())
        policy.collect_gradients()
        found.append({name: shard.grad.clone() for name, shard in policy.shards.items()})
    kept, computed_again = found
    routers = [name for name in kept if name.endswith("mlp.gate.weight")]
    assert len(routers) == LAYERS
    assert all(kept[name].abs().sum() > 0 for name in routers)
    for name, gradient in kept.items():
        torch.testing.assert_close(computed_again[name], gradient)


@pytest.mark.parametrize(("known", "share"), [(1.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_the_step_tells_the_share_that_was_replayed(group: LearnerGroup, known: float, share: float) -> None:
    rows = routed_rows(routed_model())
    half = rows.num_rows // 2
    if known < 1:
        routes = rows.routes.copy()
        routes[: rows.offsets[half if known else rows.num_rows]] = -1
        rows = replace(rows, routes=routes)
    backend = on_policy(
        ShardedPolicy(routed_model(), group, torch.float32),
        optimizer=OptimizerConfig(lr=1e-3, warmup_steps=0),
        algorithm=AlgorithmConfig(),
        total_steps=4,
        temperature=1.0,
        router_replay=True,
    )
    metrics = backend.step(packs_of(rows), count_targets(rows))
    assert metrics["router/replayed_share"] == pytest.approx(share)
    assert abs(metrics["mismatch/kl"]) < 1e-6


@pytest.mark.parametrize(
    ("routes", "message"),
    [((LAYERS + 1, CHOSEN), r"routes of \(4, 2\) .* this model has \(3, 2\)"), ((LAYERS, 1), r"routes of \(3, 1\)")],
)
def test_routes_of_another_model_are_refused(routes: tuple[int, int], message: str) -> None:
    rows = routed_rows(routed_model())
    other = replace(rows, routes=np.zeros((rows.num_tokens, *routes), np.int16))
    with pytest.raises(DataError, match=message):
        policy_of(routed_model(), replays=True)(packs_of(other)[0], 1.0)


def test_routes_to_an_expert_that_is_not_there_are_refused() -> None:
    rows = routed_rows(routed_model())
    other = replace(rows, routes=np.full_like(rows.routes, EXPERTS))
    with pytest.raises(DataError, match="to expert 8 of 8"):
        policy_of(routed_model(), replays=True)(packs_of(other)[0], 1.0)


def test_rows_keep_their_routes_in_any_order() -> None:
    rows = routed_rows(routed_model())
    order = training_order(rows)[::-1].copy()
    moved = select_rows(rows, order)
    for place, row in enumerate(order):
        mine, before = (
            one.routes[one.offsets[at] : one.offsets[at + 1]] for one, at in ((moved, place), (rows, int(row)))
        )
        assert np.array_equal(mine, before)
