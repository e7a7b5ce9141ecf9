"""What the real learner keeps of single tokens: the right figures of the right rows, bounded, and the same training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.learner.probe_learner import GROUP_SIZE, GROUPS, REWARDS, built, finished, lease, rows_in, train

from streamrl.buffers.rows.records import Lease
from streamrl.config import Config
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, LearnerConfig, OptimizerConfig
from streamrl.config.schema.observe import ObserveConfig
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder
from streamrl.observability.token_figures import RowFigures, StepFigures, figures_of
from streamrl.services.learner import token_log
from streamrl.services.learner.core import LearnerCore
from streamrl.types import FrameRef

NUM_ROWS = GROUPS * GROUP_SIZE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path_factory.mktemp("models") / "model")


def configured(
    model: Path, *, token_bytes: int = 2**20, learner: dict[str, Any] | None = None, **algorithm: Any
) -> Config:
    settings = {"optimizer": OptimizerConfig(lr=1e-2, warmup_steps=0), "steps": 9, **(learner or {})}
    return Config(
        model=ModelConfig(path=str(model)),
        learner=LearnerConfig(algorithm=AlgorithmConfig(**algorithm), **settings),
        observe=ObserveConfig(token_bytes=token_bytes),
    )


def kept(folder: Path, rank: int = 0) -> list[StepFigures]:
    lines = (folder / f"tokens/rank-{rank}.jsonl").read_bytes().splitlines()
    return [figures_of(line) for line in lines]


def row_figures(figures: StepFigures, frames: list[FrameRef], number: int) -> RowFigures:
    """Of row `number` of the lease, which lies in the frames as `probe_learner.lease` says."""
    frame = frames[number % len(frames)]
    found = figures.of_row(frame.path, frame.offset, number // len(frames))
    assert found is not None
    return found


def targets(number: int) -> int:
    return 2 + number % GROUP_SIZE


@pytest.mark.parametrize(
    "learner", [{}, {"shares": 3}, {"mini_batches": 3, "ppo_epochs": 2}, {"micro_batch_tokens": 24}]
)
def test_the_figures_of_each_row_are_those_that_it_is_trained_with_however_a_step_is_cut(
    model: Path, tmp_path: Path, learner: dict[str, Any]
) -> None:
    config = configured(model, learner=learner)
    with built(config, tmp_path) as core:
        frames = rows_in(config, tmp_path)
        plan = core.plan(lease(0, frames))
        expected = logprobs_of(core, plan)
        train(core, frames, range(2))
    first, second = kept(tmp_path)
    assert (first.step, second.step) == (0, 1)
    advantages = np.frombuffer(plan.advantages, np.float64)
    for number in range(NUM_ROWS):
        figures = row_figures(first, frames, number)
        if advantages[number] == 0:
            assert len(figures.logprobs) == 0, "it gives no gradient, and is not computed"
            continue
        assert len(figures.logprobs) == targets(number)
        np.testing.assert_allclose(figures.logprobs, expected[number], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(figures.advantages, np.full(targets(number), advantages[number], np.float32))
        assert (figures.entropies > 0).all()
    moved = [row_figures(second, frames, number).logprobs for number in range(NUM_ROWS)]
    trained = [number for number in range(NUM_ROWS) if advantages[number]]
    assert any(not np.allclose(moved[number], expected[number]) for number in trained), (
        "the second step has other weights"
    )


def logprobs_of(core: LearnerCore, plan: Any) -> dict[int, np.ndarray]:
    """Of each row of the lease, by the learner as it is, on its own."""
    from streamrl.learner.batch.packing import pack
    from streamrl.services.learner.step_plan import shares_of

    found = {}
    for mini_batch in shares_of(plan, 0, core._config):
        for share in mini_batch:
            rows = core._rows(plan, share)
            for packed in pack(rows, np.ones(rows.num_rows), 1000):
                (logprobs,) = core._backend.logprobs([packed])
                for row in np.unique(packed.rows.numpy()):
                    found[int(share.place[row])] = logprobs[packed.rows == row].numpy()
    return found


def test_weights_and_metrics_are_the_same_to_the_bit_whether_tokens_are_kept_or_not(
    model: Path, tmp_path: Path
) -> None:
    found = []
    for token_bytes in (0, 2**20):
        folder = tmp_path / str(token_bytes)
        config = configured(model, token_bytes=token_bytes, learner={"mini_batches": 3, "ppo_epochs": 2})
        with built(config, folder) as core:
            frames = rows_in(config, folder)
            metrics = train(core, frames, range(3))
            times = [name for name in metrics[0] if name.startswith("time/")]
            found.append((core.weight_digest(), [{k: v for k, v in one.items() if k not in times} for one in metrics]))
    assert found[0] == found[1]
    assert not (tmp_path / "0/tokens").exists()
    assert len(kept(tmp_path / str(2**20))) == 3


def test_the_advantages_that_a_critic_gave_are_told_token_by_token(model: Path, tmp_path: Path) -> None:
    config = configured(model, learner={"critic": CriticConfig(policy_lambda=0.5)}, advantage="gae")
    with built(config, tmp_path) as core:
        frames = rows_in(config, tmp_path)
        train(core, frames, range(1))
    (figures,) = kept(tmp_path)
    spread = [np.ptp(row_figures(figures, frames, number).advantages) for number in range(NUM_ROWS)]
    assert max(spread) > 0


def test_a_row_whose_score_failed_is_told_as_left_out(model: Path, tmp_path: Path) -> None:
    config = configured(model)
    with built(config, tmp_path) as core:
        frames = rows_in(config, tmp_path)
        train_with(core, failed(lease(0, frames), row=5))
    (figures,) = kept(tmp_path)
    assert len(row_figures(figures, frames, 5).logprobs) == 0


def failed(given: Lease, row: int) -> Lease:
    valid, rewards = given.valid.copy(), REWARDS.copy()
    valid[row], rewards[row] = False, np.nan
    return replace(given, valid=valid, rewards=rewards)


def train_with(core: LearnerCore, given: Lease) -> None:
    from streamrl.clock import SystemClock
    from streamrl.observability.timeline import StepTimer

    core.train(core.plan(given), StepTimer(SystemClock(), ("read", "pack", "forward_backward", "optimizer")))


def test_of_a_step_whole_rows_are_kept_up_to_a_number_of_tokens_and_one_at_least(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, rows in ((1, 1), (7, 2), (10**6, NUM_ROWS)):
        monkeypatch.setattr(token_log, "STEP_TOKENS", most)
        folder = tmp_path / str(most)
        config = configured(model, advantage="reinforce_pp")
        with built(config, folder) as core:
            frames = rows_in(config, folder)
            train(core, frames, range(1))
        (figures,) = kept(folder)
        found = [figures.of_row(frames[0].path, frames[0].offset, number) for number in range(NUM_ROWS)]
        assert sum(one is not None and len(one.logprobs) > 0 for one in found) == rows
        assert all(one is None or len(one.logprobs) in (0, targets(number)) for number, one in enumerate(found))


def test_the_files_stay_below_their_bound_and_have_the_newest_steps(model: Path, tmp_path: Path) -> None:
    config = configured(model, token_bytes=6000)
    with built(config, tmp_path) as core:
        frames = rows_in(config, tmp_path)
        train(core, frames, range(9))
        files = sorted((tmp_path / "tokens").iterdir())
        assert [path.name for path in files] == ["rank-0.jsonl", "rank-0.jsonl.1"]
        assert sum(path.stat().st_size for path in files) <= 6000
        assert kept(tmp_path)[-1].step == 8


def test_a_step_that_has_no_room_at_all_is_not_kept(model: Path, tmp_path: Path) -> None:
    config = configured(model, token_bytes=100)
    with built(config, tmp_path) as core:
        frames = rows_in(config, tmp_path)
        train(core, frames, range(2))
    assert list((tmp_path / "tokens").iterdir()) == []


def test_a_line_that_a_kill_tore_costs_itself_alone(model: Path, tmp_path: Path) -> None:
    config = configured(model)
    frames = rows_in(config, tmp_path)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens/rank-0.jsonl").write_bytes(b'{"step":7,"frames":[["queue')
    with built(config, tmp_path) as core:
        train(core, frames, range(2))
    torn, *lines = (tmp_path / "tokens/rank-0.jsonl").read_bytes().splitlines()
    assert torn == b'{"step":7,"frames":[["queue'
    assert [figures_of(line).step for line in lines] == [0, 1]


def test_finished_rows_have_the_number_of_tokens_that_these_tests_count_on() -> None:
    assert [len(finished(0, sample).result.token_ids) for sample in range(GROUP_SIZE)] == [2, 3, 4, 5]
