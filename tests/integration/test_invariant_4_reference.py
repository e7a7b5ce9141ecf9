"""Invariant 4: with staleness 0 the running system is the synchronous loop, to the bit; on two ranks nearly."""

import json
from typing import Any

import pytest
from support.gateway.guest_load import guests_of
from support.rewards import reward_gate
from support.runs.live_run import live_run

from streamrl.buffers.segments.places import COMPLETIONS_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.config import load
from streamrl.reference import Reference

pytestmark = pytest.mark.ray

SYNCHRONOUS = (
    ("--learner.max_staleness", "0"),
    ("--rollout.update_mode", "drain"),
    ("--rollout.deterministic", "true"),
)


EVERY_TERM = {
    "advantage": "reinforce_pp_baseline",
    "loss": "gspo",
    "aggregation": "seq_mean_token_mean",
    "entropy_coef": "0.01",
    "kl_coef": "0.1",
    "rejection.measure": "k2",
    "rejection.level": "sequence",
    "rejection.high": "0.5",
}
"""Of the algorithm: batch statistics, ratios of rows, and terms that rows without advantage have a part in."""


def sampled_ids(folder) -> dict[str, list[int]]:
    reader = SegmentReader(folder)
    ids = {}
    for path in sorted((folder / COMPLETIONS_DIR).glob("*.arrow")):
        for frame in reader.scan(str(path.relative_to(folder))):
            for row in reader.read(frame).to_pylist():
                pairs = zip(row["token_ids"], row["token_origin"], strict=True)
                ids[row["rollout_id"]] = [token for token, origin in pairs if origin == 1]
    return ids


@pytest.fixture(scope="module")
def synchronous(train, streamed) -> Any:
    """Trains with staleness 0, from one model, whatever else is set."""

    def up(name: str, *more: str) -> Any:
        model = ("--model.preset", "none", "--model.path", str(streamed.folder / "model"))
        flags = [argument for pair in SYNCHRONOUS for argument in pair]
        run = train(name, *model, *flags, "--learner.steps", "20", *more)
        assert run.code == 0, run.output
        return run

    return up


@pytest.fixture(scope="module")
def on_one_rank(synchronous) -> Any:
    return synchronous("synchronous")


def test_invariant_4_staleness_0_is_bit_equal_to_the_reference_loop(on_one_rank, monkeypatch) -> None:
    monkeypatch.syspath_prepend(on_one_rank.folder.parents[1])
    records = list(Reference(load(on_one_rank.folder / "config.toml")).steps())
    system = on_one_rank.metrics()
    # In the order of cause and effect, so that a failure names the first thing that differs.
    sampled = sampled_ids(on_one_rank.folder)
    assert {name: ids for record in records for name, ids in record.token_ids.items()} == sampled
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.grad_norm for record in records] == [row["grad/norm"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert len({record.digest for record in records}) == len(records) == 20


SEVERAL_UPDATES = ("--learner.mini_batches", "2", "--learner.ppo_epochs", "2")


@pytest.mark.long
def test_invariant_4_holds_with_every_term_of_the_loss_and_several_updates(synchronous, monkeypatch) -> None:
    flags = [word for key, value in EVERY_TERM.items() for word in (f"--learner.algorithm.{key}", value)]
    run = synchronous("every-term", *flags, *SEVERAL_UPDATES, "--learner.steps", "5")
    monkeypatch.syspath_prepend(run.folder.parents[1])
    records, system = list(Reference(load(run.folder / "config.toml")).steps()), run.metrics()
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert [record.grad_norm for record in records] == [row["grad/norm"] for row in system]
    assert 0.0 < system[0]["loss/kl"] < system[-1]["loss/kl"]


CRITIC = (
    *("--learner.algorithm.advantage", "gae"),
    *("--learner.critic.warmup_steps", "2", "--learner.critic.optimizer.lr", "1e-3"),
    *("--learner.critic.value_clip", "0.1", "--learner.critic.policy_lambda", "0.9"),
)


@pytest.mark.long
def test_invariant_4_holds_with_a_critic_that_learns_alone_at_first(synchronous, monkeypatch) -> None:
    run = synchronous("critic", *CRITIC, *SEVERAL_UPDATES, "--learner.steps", "6")
    monkeypatch.syspath_prepend(run.folder.parents[1])
    records, system = list(Reference(load(run.folder / "config.toml")).steps()), run.metrics()
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.grad_norm for record in records] == [row["grad/norm"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert records[0].digest == records[1].digest != records[2].digest
    assert system[0]["critic/value_mean"] == 0.0 != system[1]["critic/value_mean"]


IN_PARTS = '''
"""Two components, of which one is much larger; their sum says nothing. Few prompts have no format at all."""


def reward(completion, *, finish_reason, **_):
    if completion.startswith("9"):
        return {"small": 1.0, "reward": 0.5}
    small = sum(character in "01234" for character in completion) / 6
    return {"length": 100.0 - len(completion), "small": small, "reward": 0.5}
'''
COMPONENTS = (
    *("--learner.algorithm.advantage", "gdpo", "--reward.function", "in_parts:reward"),
    *("--learner.algorithm.components", "{ small = 1.0, length = -0.2 }", "--reward.max_failed", "0.9"),
    *("--learner.filter.zero_variance", "true"),
)


@pytest.mark.long
def test_invariant_4_holds_with_components_of_which_some_are_missing(synchronous, user_folder, monkeypatch) -> None:
    (user_folder / "in_parts.py").write_text(IN_PARTS)
    run = synchronous("components", *COMPONENTS, *SEVERAL_UPDATES, "--learner.steps", "5")
    monkeypatch.syspath_prepend(user_folder)
    records, system = list(Reference(load(run.folder / "config.toml")).steps()), run.metrics()
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.grad_norm for record in records] == [row["grad/norm"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert sum(row["reward/failed"] for row in system) > 0
    # Each reward is 0.5, so that whatever is learned is of the components.
    assert {row["reward/mean"] for row in system} == {0.5}
    assert min(row["grad/norm"] for row in system) > 1e-3
    assert all(row["reward/zero_variance_share"] == 0.0 for row in system)


@pytest.mark.long
def test_invariant_4_holds_with_a_greedy_rollout_in_each_group(synchronous, monkeypatch) -> None:
    run = synchronous("greedy", "--learner.algorithm.advantage", "remax", *SEVERAL_UPDATES, "--learner.steps", "5")
    monkeypatch.syspath_prepend(run.folder.parents[1])
    records, system = list(Reference(load(run.folder / "config.toml")).steps()), run.metrics()
    assert {name: ids for record in records for name, ids in record.token_ids.items()} == sampled_ids(run.folder)
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.grad_norm for record in records] == [row["grad/norm"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert [record.reward_mean for record in records] == [row["reward/mean"] for row in system]
    assert min(row["grad/norm"] for row in system) > 1e-3


PRIME = (
    *("--learner.algorithm.advantage", "prime"),
    *("--learner.prime.optimizer.lr", "1e-3", "--learner.prime.beta", "0.5"),
    *("--learner.prime.normalise", "true", "--learner.prime.whiten", "true"),
)


@pytest.mark.long
def test_invariant_4_holds_with_rewards_of_tokens(synchronous, monkeypatch) -> None:
    run = synchronous("prime", *PRIME, *SEVERAL_UPDATES, "--learner.steps", "5")
    monkeypatch.syspath_prepend(run.folder.parents[1])
    records, system = list(Reference(load(run.folder / "config.toml")).steps()), run.metrics()
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.grad_norm for record in records] == [row["grad/norm"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert system[0]["prime/reward_mean"] == 0.0 != system[1]["prime/reward_mean"]


@pytest.mark.long
def test_invariant_4_holds_where_groups_are_filtered(synchronous, monkeypatch) -> None:
    window = ("--learner.filter.zero_variance", "true", "--learner.filter.low", "0.2", "--learner.filter.high", "0.4")
    overlong = ("--learner.overlong.buffer", "4", "--learner.overlong.mask_truncated", "true")
    run = synchronous("filtered", *window, *overlong, "--learner.steps", "5")
    monkeypatch.syspath_prepend(run.folder.parents[1])
    records, system = list(Reference(load(run.folder / "config.toml")).steps()), run.metrics()
    sampled = sampled_ids(run.folder)
    trained = {name: ids for record in records for name, ids in record.token_ids.items()}
    assert {name: sampled[name] for name in trained} == trained
    assert len(sampled) > len(trained) == 5 * 8 * 4
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert all(-1.0 < row["reward/overlong_mean"] < 0.0 < row["reward/truncated_share"] < 1.0 for row in system)
    assert all(0.2 <= row["reward/mean"] <= 0.4 for row in system)
    assert all(row["reward/zero_variance_share"] == 0.0 for row in system)
    dropped = json.loads((run.folder / "summary.json").read_text())["discards_by_reason"]
    assert sum(dropped.values()) == len(sampled) // 4 - 5 * 8
    assert set(dropped) <= {"zero_variance", "too_hard", "too_easy", "truncated"}
    assert system[0]["reward/filtered_share"] > 0.0


@pytest.mark.long
def test_client_requests_change_no_bit_of_what_is_trained(on_one_rank, streamed, user_folder, streamrl_path) -> None:
    model = ("--model.preset", "none", "--model.path", str(streamed.folder / "model"))
    flags = [argument for pair in SYNCHRONOUS for argument in pair]
    # No step is trained before a guest was answered: on a busy machine the gateway may be the last to stand.
    reward_gate.build(user_folder)
    reward_gate.shut(user_folder)
    gated = ("--reward.function", reward_gate.FUNCTION, "--reward.timeout_s", "250")
    told = (*model, *flags, *gated, "--learner.steps", "20", "--gateway.enabled", "true")
    with live_run(user_folder, streamrl_path, "with-guests", *told) as run, guests_of(lambda: run.folder) as answered:
        assert answered.wait(240), run.events[-3:]
        reward_gate.reopen(user_folder)
        code, err = run.end()
    assert code == 0, err
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    digests = [line["weights/digest"] for line in lines if "weights/digest" in line]
    assert digests == [row["weights/digest"] for row in on_one_rank.metrics()]
    assert sampled_ids(run.folder) == sampled_ids(on_one_rank.folder)


@pytest.mark.long
@pytest.mark.parametrize("spread", ["rows", "tokens"])
def test_twenty_live_steps_on_two_ranks_agree_with_one_rank_to_1e_5(synchronous, on_one_rank, spread: str) -> None:
    """Each rank with rows of its own, or with a stretch of every pack."""
    more = ("--learner.sequence_parallel", "2") if spread == "tokens" else ()
    run = synchronous(f"two-ranks-{spread}", "--learner.num_workers", "2", *more)
    assert sampled_ids(run.folder) == sampled_ids(on_one_rank.folder)
    one, two = on_one_rank.metrics(), run.metrics()
    assert len(one) == len(two) == 20
    for key in ("loss/policy", "grad/norm"):
        assert max(abs(a[key] - b[key]) for a, b in zip(one, two, strict=True)) <= 1e-5
    assert max(row["grad/norm"] for row in one) > 1e-3
