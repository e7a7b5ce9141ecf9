"""What the objective knows of single tokens is taken as it goes by, and changes nothing."""

from dataclasses import replace

import numpy as np
import torch

from streamrl.config.schema.algorithm import AlgorithmConfig, RejectionConfig
from streamrl.learner.batch.packing import PackedBatch, empty_pack, pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.objectives import policy_loss
from streamrl.learner.token_watch import TokenWatch
from streamrl.observability.token_figures import CLIPPED, REJECTED, TRUNCATED
from streamrl.types import RolloutRows, TokenOrigin

ROWS, LENGTH = 4, 5
ADVANTAGES = np.array([1.0, -1.0, 0.5, -0.5])
SHIFTS = torch.tensor([0.0, 0.05, 2.0, -2.0])
"""Of the log-probs of each row, learner less engine."""
ALGORITHM = AlgorithmConfig(
    proximal="recompute", correction="tis", tis_cap=1.5, rejection=RejectionConfig(measure="ratio", low=0.2)
)


def rows_of() -> RolloutRows:
    """Each of a prompt token and four sampled ones."""
    count = ROWS * LENGTH
    origin = np.full(count, TokenOrigin.SAMPLED, np.uint8)
    origin[::LENGTH] = TokenOrigin.PROMPT
    return RolloutRows(
        offsets=np.arange(ROWS + 1) * LENGTH,
        token_ids=(3 + np.arange(count) % 7).astype(np.int32),
        token_origin=origin,
        rollout_logprobs=(-1.0 - np.arange(count) / 64).astype(np.float32),
        token_steps=np.zeros(count, np.int64),
        group=np.arange(ROWS),
        sample_index=np.zeros(ROWS, np.int64),
        rewards=np.zeros(ROWS),
        valid=np.ones(ROWS, np.bool_),
    )


def policy(packed: PackedBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs that are those of the engine but for the shift of their row; entropies that follow from them."""
    logprobs = packed.rollout_logprobs + SHIFTS[packed.rows]
    return logprobs.requires_grad_(), -2 * logprobs.detach()


def losses(watch: TokenWatch | None, packs: list[PackedBatch]) -> list[float]:
    found = []
    for one in packs:
        loss, _ = policy_loss(policy, one, count_targets(rows_of()), ALGORITHM, 1.0, watch=watch)  # type: ignore[arg-type]
        found.append(loss.item())
    return found


def test_what_is_taken_is_what_the_loss_was_made_of_and_the_loss_is_the_same() -> None:
    packs = pack(rows_of(), ADVANTAGES, 2 * LENGTH)
    assert len(packs) == 2
    watch = TokenWatch(most=1000)
    watch.begin(packs=2)
    assert losses(watch, packs) == losses(None, packs)
    columns = np.concatenate(watch.taken(), axis=1)
    engine = rows_of().rollout_logprobs.reshape(ROWS, LENGTH)[:, 1:]
    logprobs = (engine + SHIFTS.numpy()[:, None]).ravel()
    np.testing.assert_array_equal(columns[0], logprobs)
    np.testing.assert_array_equal(columns[1], -2 * logprobs)
    np.testing.assert_array_equal(columns[2], np.repeat(ADVANTAGES, LENGTH - 1))
    # Row 2 is beyond the cap by e^2; row 3 is below the bound of the rejection.
    flags = columns[3].reshape(ROWS, LENGTH - 1)
    assert flags.tolist() == [[0] * 4, [0] * 4, [TRUNCATED] * 4, [REJECTED] * 4]


def test_a_token_whose_loss_is_at_a_bound_is_told_as_clipped() -> None:
    (whole,) = pack(rows_of(), ADVANTAGES, 1000)
    moved = replace(whole, start_logprobs=whole.rollout_logprobs)
    watch = TokenWatch(most=1000)
    watch.begin(packs=1)
    losses(watch, [moved])
    flags = watch.taken()[0][3].reshape(ROWS, LENGTH - 1)
    # The ratio to the policy before the step is e^2 in row 2, whose advantage is above 0, and e^-2 in row 3, below 0.
    assert flags.tolist() == [[0] * 4, [0] * 4, [CLIPPED] * 4, [CLIPPED] * 4]


def test_of_several_updates_the_policy_before_the_first_is_told_and_the_first_pass_alone() -> None:
    (whole,) = pack(rows_of(), ADVANTAGES, 1000)
    before = torch.full((whole.num_targets,), -0.5)
    whole = replace(whole, start_logprobs=before)
    watch = TokenWatch(most=1000)
    watch.begin(packs=1)
    losses(watch, [whole, whole, whole])
    (columns,) = watch.taken()
    assert columns[0].tolist() == before.tolist()


def test_no_pack_is_taken_once_there_are_tokens_enough_and_one_without_targets_is_none() -> None:
    packs = pack(rows_of(), ADVANTAGES, LENGTH)
    assert len(packs) == ROWS
    watch = TokenWatch(most=LENGTH)
    watch.begin(packs=ROWS)
    losses(watch, [empty_pack(), packs[0], empty_pack(), *packs[1:]])
    assert [columns.shape for columns in watch.taken()] == [(4, LENGTH - 1)] * 2
    watch.begin(packs=ROWS)
    assert watch.taken() == []
