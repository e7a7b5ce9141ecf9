"""Packs against one row and one token at a time: nothing lost, nothing invented, nothing padded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.errors import ConfigError, NonFiniteError
from streamrl.learner.batch.packing import SHARED_COST, PackedBatch, empty_pack, pack
from streamrl.learner.batch.rows import count_targets, select_rows, training_order
from streamrl.types import RolloutRows, TokenOrigin

PAD = EOS = 2


def make_rows(
    *, tokens: list[list[int]], origins: list[list[int]], groups: list[int], valid: list[bool] | None = None
) -> RolloutRows:
    """Rows with log-probs -0.25 * (1, 2, 3, ...) over all tokens."""
    count = sum(map(len, tokens))
    return RolloutRows(
        offsets=np.cumsum([0, *map(len, tokens)]).astype(np.int64),
        token_ids=np.array([t for row in tokens for t in row], np.int32),
        token_origin=np.array([o for row in origins for o in row], np.uint8),
        rollout_logprobs=(-0.25 * np.arange(1, count + 1)).astype(np.float32),
        token_steps=np.arange(count) % 5,
        group=np.array(groups, np.int64),
        sample_index=np.arange(len(tokens)),
        rewards=np.zeros(len(tokens)),
        valid=np.array(valid if valid is not None else [True] * len(tokens)),
    )


@st.composite
def ragged(draw: st.DrawFn) -> RolloutRows:
    """Groups of rows: equal or different prompts, turns of an environment, eos = pad inside, rows that failed, rows
    of one token, rows without a sampled token."""
    tokens, origins, groups = [], [], []
    ids = st.sampled_from([PAD, 3, 4, 5])
    for group in range(draw(st.integers(1, 4))):
        prompt = draw(st.lists(ids, max_size=4))
        for _ in range(draw(st.integers(1, 4))):
            own = draw(st.one_of(st.just(prompt), st.lists(ids, max_size=4)))
            rest = draw(st.lists(st.tuples(ids, st.sampled_from([1, 1, 1, 2])), max_size=5))
            if not own and not rest:
                rest = [(EOS, 1)]
            tokens.append([*own, *(t for t, _ in rest)])
            origins.append([*(TokenOrigin.PROMPT for _ in own), *(o for _, o in rest)])
            groups.append(group)
    valid = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    return make_rows(tokens=tokens, origins=origins, groups=groups, valid=valid)


def keys_of(packed: PackedBatch, place: int) -> list[int]:
    """The ids that the token at `place` sees, in order, itself last."""
    cu_q, cu_k = packed.layout.cu_q.tolist(), packed.layout.cu_k.tolist()
    segment = max(i for i, start in enumerate(cu_q[:-1]) if start <= place)
    unseen = cu_q[segment + 1] - 1 - place
    index = packed.layout.kv_index[cu_k[segment] : cu_k[segment + 1] - unseen]
    assert index[-1] == place
    return packed.ids[index].tolist()


def slow_targets(rows: RolloutRows) -> list[tuple[int, list[int], int, float, int]]:
    """(row, ids before the target, target, log-prob, targets of the row), for each trained token."""
    found = []
    for row in range(rows.num_rows):
        start, end = rows.offsets[row], rows.offsets[row + 1]
        places = [t for t in range(start + 1, end) if rows.token_origin[t] == 1] if rows.valid[row] else []
        for t in places:
            before = rows.token_ids[start:t].tolist()
            found.append((row, before, int(rows.token_ids[t]), float(rows.rollout_logprobs[t]), len(places)))
    return found


def packed_targets(packs: list[PackedBatch]) -> list[tuple[int, list[int], int, float, int]]:
    return [
        (
            int(p.rows[k]),
            keys_of(p, int(p.predictors[k])),
            int(p.targets[k]),
            float(p.rollout_logprobs[k]),
            int(p.row_tokens[k]),
        )
        for p in packs
        for k in range(p.num_targets)
    ]


@settings(deadline=None, max_examples=80)
@given(rows=ragged(), share_from=st.sampled_from([None, 1, 2, 64]), budget=st.integers(9, 40))
def test_each_trained_token_is_predicted_once_from_exactly_what_came_before_it(
    rows: RolloutRows, share_from: int | None, budget: int
) -> None:
    packs = pack(rows, np.arange(rows.num_rows) / 4, budget, share_from=share_from, step=7)
    ages = [7 - int(rows.token_steps[rows.offsets[row] + len(before)]) for row, before, *_ in slow_targets(rows)]
    assert [lag for p in packs for lag in p.lags.tolist()] == ages
    assert packed_targets(packs) == slow_targets(rows)
    for p in packs:
        assert p.advantages.tolist() == (p.rows / 4).tolist()
        assert int(p.layout.cu_q[-1]) == p.num_tokens <= budget
        assert len(p.layout.kv_index) >= p.num_tokens


@settings(deadline=None, max_examples=40)
@given(rows=ragged(), share_from=st.sampled_from([1, 64]), budget=st.integers(9, 40))
def test_positions_count_from_the_start_of_each_row(rows: RolloutRows, share_from: int, budget: int) -> None:
    for p in pack(rows, np.zeros(rows.num_rows), budget, share_from=share_from):
        for place in range(p.num_tokens):
            assert int(p.position_ids[place]) == len(keys_of(p, place)) - 1


@settings(deadline=None, max_examples=30)
@given(rows=ragged(), share_from=st.sampled_from([1, 64]))
def test_runs_cover_the_segments_in_order(rows: RolloutRows, share_from: int) -> None:
    for p in pack(rows, np.zeros(rows.num_rows), 64, share_from=share_from):
        lengths = [(r.q_len, r.k_len) for r in p.layout.runs for _ in range(r.count)]
        assert np.cumsum([q for q, _ in lengths]).tolist() == p.layout.cu_q[1:].tolist()
        assert np.cumsum([k for _, k in lengths]).tolist() == p.layout.cu_k[1:].tolist()
        assert [r.q_start for r in p.layout.runs] == np.cumsum(
            [0, *(r.count * r.q_len for r in p.layout.runs[:-1])]
        ).tolist()
        assert len({(run.q_len, run.k_len) for run in p.layout.runs}) == len(p.layout.runs)


def test_a_shared_prompt_is_computed_once_and_the_last_token_never() -> None:
    rows = make_rows(
        tokens=[[3, 4, 5, 3, EOS], [3, 4, 5, 4, 4, EOS], [3, 4, 5, EOS]],
        origins=[[0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1]],
        groups=[0, 0, 0],
    )
    (shared,) = pack(rows, np.zeros(3), 64)
    (plain,) = pack(rows, np.zeros(3), 64, share_from=None)
    assert (shared.num_tokens, plain.num_tokens) == (3 + 1 + 2, 4 + 5 + 3)


def inputs(rows: RolloutRows, row: int) -> list[int]:
    """Ids of a row up to the token that predicts its last target; none where it has no target."""
    start = int(rows.offsets[row])
    targets = [before for of, before, *_ in slow_targets(rows) if of == row]
    return rows.token_ids[start : start + len(targets[-1])].tolist() if targets else []


def beginnings(rows: RolloutRows) -> set[tuple[int, ...]]:
    """Every beginning of a row's inputs: a token each, where nothing is computed twice."""
    found = [inputs(rows, row) for row in range(rows.num_rows)]
    return {tuple(ids[:end]) for ids in found for end in range(1, len(ids) + 1)}


@settings(deadline=None, max_examples=80)
@given(rows=ragged())
def test_what_rows_of_a_group_have_in_common_is_computed_once(rows: RolloutRows) -> None:
    for group in set(rows.group.tolist()):
        one = select_rows(rows, np.flatnonzero(rows.group == group))
        packs = pack(one, np.zeros(one.num_rows), 1000, share_from=1)
        assert sum(p.num_tokens for p in packs) == len(beginnings(one))


def test_forks_of_an_episode_are_a_tree() -> None:
    """Three branches: the second left the first behind its first turn, the third left the second behind its second."""
    turns = [list(range(start, start + 70)) for start in range(0, 700, 100)]
    said = [turns[0] + turns[1] + turns[2], turns[0] + turns[1] + turns[3] + turns[4], turns[0] + turns[1] + turns[3]]
    tokens = [[*ids, *turns[5], EOS] for ids in said]
    origins = [[0] * len(ids) + [1] * 71 for ids in said]
    rows = make_rows(tokens=tokens, origins=origins, groups=[0, 0, 0])
    (packed,) = pack(rows, np.zeros(3), 2000)
    assert packed.num_tokens == len(beginnings(rows)) == 140 + 70 + 70 + 70 + 3 * 70
    assert len(packed.layout.cu_q) - 1 == 5
    assert packed_targets([packed]) == slow_targets(rows)


def test_rows_of_two_groups_share_a_long_prompt_of_the_system() -> None:
    system = list(range(64))
    tokens = [[*system, 70 + group, 80, EOS] for group in range(3)]
    rows = make_rows(tokens=tokens, origins=[[0] * 65 + [1, 1]] * 3, groups=[0, 1, 2])
    (packed,) = pack(rows, np.zeros(3), 1000)
    assert packed.num_tokens == 64 + 3 * 2
    assert packed_targets([packed]) == slow_targets(rows)


def test_a_few_sampled_tokens_in_common_stay_with_each_row() -> None:
    """They would break up calls of equal shape."""
    rows = make_rows(
        tokens=[[3, 4, 5, 6, EOS], [3, 4, 5, 7, EOS]], origins=[[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]], groups=[0, 0]
    )
    (packed,) = pack(rows, np.zeros(2), 1000)
    assert packed.num_tokens == 2 + 2 + 2


@settings(deadline=None, max_examples=40)
@given(rows=ragged(), share_from=st.sampled_from([1, 2, 64]), budget=st.integers(9, 40))
def test_a_pack_has_room_for_what_its_rows_share(rows: RolloutRows, share_from: int, budget: int) -> None:
    """A token once, and an eighth of one, rounded up, for each row of the group that has it too."""
    for p in pack(rows, np.zeros(rows.num_rows), budget, share_from=share_from):
        keys = sum(len(inputs(rows, row)) for row in set(p.rows.tolist()))
        assert p.num_tokens + (keys - p.num_tokens) / SHARED_COST <= budget


def test_more_rows_fit_into_a_pack_where_they_share_a_prompt() -> None:
    tokens = [[*range(80), 100 + row, EOS] for row in range(10)]
    rows = make_rows(tokens=tokens, origins=[[0] * 80 + [1, 1]] * 10, groups=[0] * 10)
    budget = 81 + 9 * (1 + 80 // SHARED_COST)
    assert [p.num_targets for p in pack(rows, np.zeros(10), budget)] == [20]
    assert [p.num_targets for p in pack(rows, np.zeros(10), budget - 1)] == [10, 10]


def test_one_different_prompt_in_a_group_is_not_shared() -> None:
    rows = make_rows(tokens=[[3, 4, 5, 5], [3, 5, 5, 5]], origins=[[0, 0, 1, 1], [0, 0, 1, 1]], groups=[0, 0])
    (packed,) = pack(rows, np.zeros(2), 64)
    assert packed.num_tokens == 6


def test_equal_prompts_of_two_groups_are_not_shared() -> None:
    rows = make_rows(tokens=[[3, 4, 5], [3, 4, 5]], origins=[[0, 0, 1]] * 2, groups=[0, 1])
    (packed,) = pack(rows, np.zeros(2), 64)
    assert packed.num_tokens == 4


def test_rows_that_train_nothing_are_not_packed() -> None:
    rows = make_rows(
        tokens=[[3], [3, 4], [3, 4], [EOS]],
        origins=[[1], [0, 0], [0, 1], [0]],
        groups=[0, 1, 2, 3],
        valid=[True, True, False, True],
    )
    assert pack(rows, np.zeros(4), 64) == []
    assert count_targets(rows) == (0, 0)


def test_a_row_longer_than_a_pack_is_an_error_that_names_it_and_the_way_out() -> None:
    rows = make_rows(tokens=[[3, 4], [3] * 9], origins=[[0, 1], [0] + [1] * 8], groups=[4, 6])
    with pytest.raises(ConfigError, match=r"group 6, sample 1 has 9 tokens.*micro_batch_tokens = 7.*at least 8"):
        pack(rows, np.zeros(2), 7)
    assert len(pack(rows, np.zeros(2), 8)) == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_invariant_12_a_log_prob_that_is_not_finite_is_not_packed(bad: float) -> None:
    rows = make_rows(tokens=[[3, 4, 5], [3, 4, 5]], origins=[[0, 1, 1]] * 2, groups=[8, 8])
    rows.rollout_logprobs[5] = bad
    with pytest.raises(NonFiniteError, match="group 8, sample 1"):
        pack(rows, np.zeros(2), 64)
    rows.rollout_logprobs[5] = -1.0
    with pytest.raises(NonFiniteError, match="advantage"):
        pack(rows, np.array([bad, 0.0]), 64)


def test_a_log_prob_where_nothing_was_sampled_has_no_part() -> None:
    rows = make_rows(tokens=[[3, 4, 5]], origins=[[0, 0, 1]], groups=[0])
    rows.rollout_logprobs[0] = np.nan
    assert len(pack(rows, np.zeros(1), 64)) == 1


def test_denominators_count_trained_tokens_and_rows_that_have_one() -> None:
    rows = make_rows(
        tokens=[[3, 4, 5], [3, 4, 5], [3, 4], [4, 4, 4]],
        origins=[[0, 1, 1], [0, 2, 1], [0, 0], [0, 1, 1]],
        groups=[0, 0, 1, 1],
        valid=[True, True, True, False],
    )
    assert count_targets(rows) == (3, 2)


@settings(deadline=None, max_examples=30)
@given(rows=ragged(), seed=st.integers(0, 99))
def test_packs_do_not_depend_on_the_order_of_arrival(rows: RolloutRows, seed: int) -> None:
    shuffled = select_rows(rows, np.random.default_rng(seed).permutation(rows.num_rows))
    restored = select_rows(shuffled, training_order(shuffled))
    for a, b in zip(pack(rows, rows.sample_index / 4, 40), pack(restored, restored.sample_index / 4, 40), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.rollout_logprobs.tolist() == b.rollout_logprobs.tolist()
        assert a.advantages.tolist() == b.advantages.tolist()


def test_an_empty_pack_has_one_token_and_no_target() -> None:
    packed = empty_pack()
    assert (packed.num_tokens, packed.num_targets) == (1, 0)


@given(rows=ragged(), data=st.data())
def test_skipping_rows_without_advantage_leaves_exactly_the_others(rows: RolloutRows, data: st.DataObject) -> None:
    rows = select_rows(rows, training_order(rows))
    advantages = np.array(
        data.draw(st.lists(st.sampled_from([0.0, -1.5, 2.0]), min_size=rows.num_rows, max_size=rows.num_rows))
    )
    everything = pack(rows, advantages, 64)
    kept = pack(rows, advantages, 64, skip_zero=True)
    found = [(int(row), int(target)) for p in kept for row, target in zip(p.rows, p.targets, strict=True)]
    wanted = [
        (int(row), int(target))
        for p in everything
        for row, target, advantage in zip(p.rows, p.targets, p.advantages, strict=True)
        if advantage != 0.0
    ]
    assert sorted(found) == sorted(wanted)
