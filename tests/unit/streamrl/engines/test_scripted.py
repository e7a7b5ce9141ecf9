"""The scripted engine: reproducible, exact about versions, broken on demand."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.clock import VirtualClock
from streamrl.config.schema.rollout import ScriptedConfig
from streamrl.engines.base import Engine
from streamrl.engines.script import ScriptedAnswers
from streamrl.engines.scripted import ScriptedEngine
from streamrl.errors import ComponentError
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    UpdateMode,
    Version,
    VersionSpan,
)

VOCAB_SIZE, EOS = 32, 1


def engine(*, slots: int = 4, answers: ScriptedAnswers | None = None, **script: float) -> ScriptedEngine:
    config = ScriptedConfig(**script)  # type: ignore[arg-type]
    return ScriptedEngine(config, slots=slots, vocab_size=VOCAB_SIZE, eos_token_id=EOS, answers=answers)


def request(seed: int, *, prompt: Sequence[int] = (3, 4), max_new_tokens: int = 64) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{seed}",
        prompt_ids=np.array(prompt, np.int32),
        seed=seed,
        sampling=SamplingParams(max_new_tokens=max_new_tokens),
        stop_token_ids=(EOS,),
    )


def play(scripted: Engine, requests: Sequence[GenerationRequest]) -> dict[str, GenerationResult]:
    scripted.submit(requests)
    return finish(scripted)


def finish(scripted: Engine) -> dict[str, GenerationResult]:
    results: dict[str, GenerationResult] = {}
    while scripted.has_work:
        results.update({result.request_id: result for result in scripted.step()})
    return results


def step_times(scripted: Engine, count: int) -> list[GenerationResult]:
    return [result for _ in range(count) for result in scripted.step()]


def same(left: GenerationResult, right: GenerationResult) -> bool:
    return (
        left.token_ids.tobytes() == right.token_ids.tobytes()
        and left.logprobs.tobytes() == right.logprobs.tobytes()
        and (left.finish_reason, left.error) == (right.finish_reason, right.error)
    )


@settings(max_examples=60, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=12, unique=True),
    slots=st.integers(1, 6),
    pauses=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
def test_a_request_gives_the_same_whatever_shares_its_batch_and_whenever_it_comes(
    seeds: list[int], slots: int, pauses: list[int]
) -> None:
    script = {"latency_steps": 5, "heavy_tail": 0.7, "error_rate": 0.2, "nan_rate": 0.2}
    alone = {f"r{seed}": play(engine(**script), [request(seed)])[f"r{seed}"] for seed in seeds}
    together = engine(slots=slots, **script)
    results: dict[str, GenerationResult] = {}
    for seed, pause in zip(seeds, pauses, strict=False):
        together.submit([request(seed)])
        results.update({result.request_id: result for result in step_times(together, pause)})
    results.update(finish(together))
    assert results.keys() == alone.keys()
    assert all(same(results[key], alone[key]) for key in alone)


def test_tokens_are_below_the_vocabulary_and_only_the_last_is_the_end() -> None:
    results = play(engine(latency_steps=9), [request(seed) for seed in range(200)])
    tokens = np.stack([result.token_ids for result in results.values()])
    assert tokens.shape == (200, 9)
    assert tokens.dtype == np.int32
    assert (tokens[:, -1] == EOS).all()
    assert set(np.unique(tokens[:, :-1])) == set(range(VOCAB_SIZE)) - {EOS}
    assert all(result.finish_reason is FinishReason.STOP for result in results.values())


def test_a_rollout_that_reaches_its_limit_has_no_end_token() -> None:
    result = play(engine(latency_steps=9), [request(0, max_new_tokens=5)])["r0"]
    assert len(result.token_ids) == len(result.logprobs) == 5
    assert EOS not in result.token_ids
    assert result.finish_reason is FinishReason.LENGTH


def test_each_step_adds_one_token_to_every_running_request_and_refills_slots() -> None:
    scripted = engine(slots=2, latency_steps=3)
    scripted.submit([request(seed) for seed in range(3)])
    assert [result.request_id for result in step_times(scripted, 3)] == ["r0", "r1"]
    assert (scripted.stats().running, scripted.stats().waiting) == (0, 1)
    assert [result.request_id for result in step_times(scripted, 3)] == ["r2"]
    stats = scripted.stats()
    assert (stats.generated_tokens, stats.finished_requests) == (9, 3)
    assert not scripted.has_work


def test_lognormal_lengths_keep_the_mean_and_have_a_tail() -> None:
    requests = [request(seed, max_new_tokens=100_000) for seed in range(4000)]
    results = play(engine(slots=4000, latency_steps=40, heavy_tail=1.0), requests)
    lengths = np.array([len(result.token_ids) for result in results.values()])
    assert lengths.mean() == pytest.approx(40, rel=0.1)
    assert lengths.max() > 8 * lengths.mean()
    assert np.median(lengths) == pytest.approx(40 * np.exp(-0.5), rel=0.1)


def test_invariant_6_keep_marks_the_token_at_which_a_version_begins() -> None:
    scripted = engine(latency_steps=6)
    scripted.submit([request(0)])
    step_times(scripted, 2)
    scripted.submit([request(1)])
    step_times(scripted, 1)
    scripted.load_weights({}, Version(0, 1), UpdateMode.KEEP)
    scripted.load_weights({}, Version(0, 2), UpdateMode.RECOMPUTE)
    results = finish(scripted)
    assert results["r0"].version_spans == (VersionSpan(0, Version(0, 0)), VersionSpan(3, Version(0, 2)))
    assert results["r1"].version_spans == (VersionSpan(0, Version(0, 0)), VersionSpan(1, Version(0, 2)))


def test_invariant_6_drain_finishes_the_old_version_first_and_starts_nothing_meanwhile() -> None:
    scripted = engine(slots=2, latency_steps=4)
    scripted.submit([request(0)])
    step_times(scripted, 1)
    scripted.load_weights({}, Version(0, 1), UpdateMode.DRAIN)
    scripted.submit([request(1)])
    step_times(scripted, 2)
    assert (scripted.version, scripted.stats().waiting) == (Version(0, 0), 1)
    results = finish(scripted)
    assert results["r0"].version_spans == (VersionSpan(0, Version(0, 0)),)
    assert results["r1"].version_spans == (VersionSpan(0, Version(0, 1)),)
    assert scripted.version == Version(0, 1)


def test_an_idle_engine_drains_at_once_and_an_abort_can_end_a_drain() -> None:
    scripted = engine(latency_steps=4)
    scripted.load_weights({}, Version(0, 1), UpdateMode.DRAIN)
    assert scripted.version == Version(0, 1)
    scripted.submit([request(0)])
    step_times(scripted, 1)
    scripted.load_weights({}, Version(0, 2), UpdateMode.DRAIN)
    scripted.abort(["r0"])
    assert scripted.version == Version(0, 2)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from(["step", "step", "submit", *UpdateMode]),
        min_size=5,
        max_size=60,
    )
)
def test_invariant_6_spans_are_exact_under_any_schedule(schedule: list[str]) -> None:
    scripted = engine(slots=2, latency_steps=5, heavy_tail=0.6)
    sampled_by: list[Version] = []

    def step_and_check() -> None:
        sampled_by.append(scripted.version)
        for result in scripted.step():
            length = len(result.token_ids)
            starts = [span.start for span in result.version_spans] + [length]
            marks = [
                span.version
                for span, low, high in zip(result.version_spans, starts, starts[1:], strict=False)
                for _ in range(low, high)
            ]
            assert marks == sampled_by[len(sampled_by) - length :]

    for number, action in enumerate(schedule):
        if action == "step":
            step_and_check()
        elif action == "submit":
            scripted.submit([request(number)])
        else:
            scripted.load_weights({}, Version(0, number + 1), UpdateMode(action))
    while scripted.has_work:
        step_and_check()


@pytest.mark.parametrize("mode", UpdateMode)
def test_invariant_6_a_version_that_is_not_newer_is_refused_and_the_old_one_serves_on(
    mode: UpdateMode,
) -> None:
    scripted = engine()
    scripted.load_weights({}, Version(0, 5), UpdateMode.KEEP)
    for version in (Version(0, 5), Version(0, 4)):
        with pytest.raises(ComponentError, match=r"refused.*0\.5"):
            scripted.load_weights({}, version, mode)
    assert scripted.version == Version(0, 5)
    scripted.load_weights({}, Version(1, 0), mode)


def test_an_aborted_request_comes_back_once_with_the_tokens_it_had() -> None:
    scripted = engine(slots=1, latency_steps=6)
    whole = play(engine(latency_steps=6), [request(0)])["r0"]
    scripted.submit([request(0), request(1), request(2)])
    step_times(scripted, 2)
    scripted.abort(["r0", "r1", "unknown"])
    results = {result.request_id: result for result in scripted.step()}
    assert results.keys() == {"r0", "r1"}
    assert all(result.finish_reason is FinishReason.ABORT for result in results.values())
    assert results["r0"].token_ids.tolist() == whole.token_ids[:2].tolist()
    assert results["r0"].version_spans == (VersionSpan(0, Version(0, 0)),)
    assert (len(results["r1"].token_ids), results["r1"].version_spans) == (0, ())
    assert finish(scripted).keys() == {"r2"}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (request(0, prompt=()), "the prompt is empty"),
        (request(0, prompt=(3, VOCAB_SIZE)), "outside 0..31"),
        (request(0, prompt=(-1,)), "outside 0..31"),
        (request(0, max_new_tokens=0), "max_new_tokens is 0"),
        (request(0, prompt=(3,) * 20, max_new_tokens=20), "may take 40 tokens; the context has 32"),
    ],
)
def test_a_request_that_can_never_run_comes_back_as_an_error_and_harms_no_other(
    bad: GenerationRequest, error: str
) -> None:
    scripted = ScriptedEngine(ScriptedConfig(), slots=4, vocab_size=VOCAB_SIZE, eos_token_id=EOS, context_length=32)
    results = play(scripted, [bad, request(7, max_new_tokens=8)])
    assert results["r0"].finish_reason is FinishReason.ERROR
    assert error in results["r0"].error
    assert results["r7"].finish_reason is FinishReason.STOP


def test_a_request_id_may_come_again_only_after_its_result() -> None:
    scripted = engine()
    scripted.submit([request(0)])
    with pytest.raises(ComponentError, match="r0 was submitted twice"):
        scripted.submit([request(0)])
    first = finish(scripted)["r0"]
    assert same(play(scripted, [request(0)])["r0"], first)


def test_an_aborted_request_that_comes_again_runs_to_its_own_end() -> None:
    scripted = engine(latency_steps=6)
    whole = play(engine(latency_steps=6), [request(0)])["r0"]
    scripted.submit([request(0)])
    step_times(scripted, 2)
    scripted.abort(["r0"])
    assert [result.finish_reason for result in scripted.step()] == [FinishReason.ABORT]
    scripted.submit([request(0)])
    assert step_times(scripted, 5) == []
    assert same(scripted.step()[0], whole)


def test_faults_come_at_the_asked_rates_and_nowhere_else() -> None:
    requests = [request(seed) for seed in range(2000)]
    clean = play(engine(slots=512), requests)
    faulty = play(engine(slots=512, error_rate=0.1, nan_rate=0.2), requests)
    errors = [result for result in faulty.values() if result.finish_reason is FinishReason.ERROR]
    nans = [result for result in faulty.values() if np.isnan(result.logprobs).any()]
    assert len(errors) == pytest.approx(200, abs=45)
    assert len(nans) == pytest.approx(400, abs=60)
    assert all(result.error for result in errors)
    assert all(np.isnan(result.logprobs).sum() == 1 for result in nans)
    assert all(np.isfinite(result.logprobs).all() and not result.error for result in clean.values())


def test_a_rollout_that_hangs_keeps_its_slot_for_ever_and_harms_no_other_until_it_is_aborted() -> None:
    requests = [request(seed) for seed in range(400)]
    clean = play(engine(slots=512), requests)
    scripted = engine(slots=512, hang_rate=0.1)
    scripted.submit(requests)
    ended = {result.request_id: result for result in step_times(scripted, 200)}
    hanging = clean.keys() - ended.keys()
    assert len(hanging) == pytest.approx(40, abs=20)
    assert all(same(ended[key], clean[key]) for key in ended)
    sampled = scripted.stats().generated_tokens
    assert (scripted.stats().running, scripted.stats().waiting, step_times(scripted, 50)) == (len(hanging), 0, [])
    assert scripted.stats().generated_tokens == sampled
    assert scripted.partials(0, hanging) == []
    with pytest.raises(ComponentError, match="submitted twice"):
        scripted.submit([request(int(min(hanging)[1:]))])
    scripted.load_weights({}, Version(0, 1), UpdateMode.DRAIN)
    assert scripted.version == Version(0, 0)
    scripted.abort(hanging)
    assert {result.request_id for result in scripted.step()} == hanging
    assert scripted.version == Version(0, 1)
    assert not scripted.has_work


def test_hanging_rollouts_can_take_all_slots() -> None:
    scripted = engine(slots=4, hang_rate=1.0)
    scripted.submit([request(seed) for seed in range(6)])
    assert step_times(scripted, 10) == []
    assert (scripted.stats().running, scripted.stats().waiting) == (4, 2)


def test_a_bias_moves_every_logprob_and_no_token() -> None:
    plain, biased = (play(engine(logprob_bias=bias), [request(5)])["r5"] for bias in (0.0, 0.5))
    assert plain.token_ids.tolist() == biased.token_ids.tolist()
    np.testing.assert_allclose(biased.logprobs - plain.logprobs, 0.5, atol=1e-6)
    assert (plain.logprobs <= 0).all()


def test_answers_get_better_with_the_version_and_keep_their_length() -> None:
    answers = ScriptedAnswers(lambda prompt: [int(prompt[0]), int(prompt[1])], start=0.2, end=0.9, steps=10)
    shares = []
    for step in (0, 5, 10, 99):
        scripted = engine(slots=1000, answers=answers)
        if step:
            scripted.load_weights({}, Version(0, step), UpdateMode.KEEP)
        results = play(scripted, [request(seed) for seed in range(1000)])
        assert {len(result.token_ids) for result in results.values()} == {3}
        shares.append(np.mean([result.token_ids.tolist() == [3, 4, EOS] for result in results.values()]))
    assert shares == pytest.approx([0.2, 0.55, 0.9, 0.9], abs=0.05)


def test_a_correct_answer_that_is_cut_short_has_its_first_tokens() -> None:
    answers = ScriptedAnswers(lambda prompt: [7, 8, 9], start=1.0, end=1.0)
    results = play(engine(answers=answers), [request(0, max_new_tokens=2), request(1, max_new_tokens=3)])
    assert results["r0"].token_ids.tolist() == [7, 8]
    assert results["r1"].token_ids.tolist() == [7, 8, 9]
    assert {result.finish_reason for result in results.values()} == {FinishReason.LENGTH}


def test_a_closed_engine_refuses_every_verb() -> None:
    scripted = engine()
    scripted.close()
    scripted.close()
    for verb in (
        scripted.step,
        scripted.stats,
        lambda: scripted.submit([]),
        lambda: scripted.abort([]),
        lambda: scripted.load_weights({}, Version(0, 1), UpdateMode.KEEP),
    ):
        with pytest.raises(ComponentError, match="after close"):
            verb()


def test_a_step_that_is_not_due_samples_nothing_and_returns_when_it_is_interrupted() -> None:
    clock = VirtualClock()
    config = ScriptedConfig(latency_steps=2, step_s=60.0)
    scripted = ScriptedEngine(config, slots=1, vocab_size=VOCAB_SIZE, eos_token_id=EOS, clock=clock)
    scripted.submit([request(0)])
    assert (scripted.step(), scripted.stats().generated_tokens) == ([], 1)
    scripted.interrupt()
    assert (scripted.step(), scripted.stats().generated_tokens) == ([], 1)
    clock.advance(60.0)
    assert [len(result.token_ids) for result in scripted.step()] == [2]


def test_what_ended_is_told_by_a_step_that_is_not_due() -> None:
    config = ScriptedConfig(step_s=60.0)
    scripted = ScriptedEngine(config, slots=1, vocab_size=VOCAB_SIZE, eos_token_id=EOS, clock=VirtualClock())
    scripted.submit([request(0), request(1)])
    scripted.step()
    scripted.abort(["r0"])
    scripted.interrupt()
    assert [result.request_id for result in scripted.step()] == ["r0"]
