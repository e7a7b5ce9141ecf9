"""Evaluation beside a stream: fixed prompts, one version, and an honest mean."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from streamrl.config.estimates.model_presets import PRESETS
from streamrl.errors import ComponentError
from streamrl.evaluation import EvalScore, Evaluator, evaluation_score, held_out_prompts, mean_score
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer, write_character_tokenizer
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.tasks.arithmetic import ArithmeticTask
from streamrl.types import (
    EngineStats,
    EvalSampling,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    Score,
    UpdateMode,
    Version,
    VersionSpan,
)

FIRST, SECOND = Version(0, 1), Version(0, 2)


class CalculatingEngine:
    """Answers sums rightly, but for operands below `wrong_below`; two requests a step, the newest first."""

    def __init__(self, tokenizer: TextTokenizer, *, wrong_below: int = 0, fail: str = "") -> None:
        self.version = FIRST
        self.requests: list[GenerationRequest] = []
        self._tokenizer = tokenizer
        self._wrong_below = wrong_below
        self._fail = fail
        self._aborted: list[str] = []

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self.requests.extend(requests)

    def abort(self, request_ids: Iterable[str]) -> None:
        self._aborted.extend(request_ids)

    def load_weights(self, tensors: object, version: Version, mode: UpdateMode) -> None:
        self.version = version

    def step(self) -> list[GenerationResult]:
        count = len(self.requests) if self._aborted else 2
        return [self._answer(self.requests.pop()) for _ in range(min(count, len(self.requests)))]

    def _answer(self, request: GenerationRequest) -> GenerationResult:
        left, right = (int(part) for part in self._tokenizer.decode(request.prompt_ids).rstrip("=").split("+"))
        if request.request_id in self._aborted or str(left) == self._fail:
            reason = FinishReason.ABORT if request.request_id in self._aborted else FinishReason.ERROR
            empty = np.zeros(0, np.int32)
            return GenerationResult(request.request_id, empty, empty.astype(np.float32), (), reason, "out of slots")
        text = "0" if left < self._wrong_below else str(left + right)
        ids = np.append(self._tokenizer.encode(text, add_special_tokens=False), 2).astype(np.int32)
        spans = (VersionSpan(0, self.version),)
        return GenerationResult(request.request_id, ids, np.zeros(len(ids), np.float32), spans, FinishReason.STOP)

    def stats(self) -> EngineStats:
        return EngineStats(len(self.requests), 0, 0, 0, 0, 0, self.version)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_character_tokenizer(PRESETS["tiny-qwen3"].characters, 64, folder)
    return load_tokenizer(folder)


def evaluator_on(engine: CalculatingEngine, tokenizer: TextTokenizer, *, max_items: int = 7) -> Evaluator:
    prompts = held_out_prompts(ArithmeticTask(), max_items)
    return Evaluator(engine, prompts, tokenizer, max_new_tokens=5)


def stream_request(tokenizer: TextTokenizer) -> GenerationRequest:
    return GenerationRequest("g.0/1", tokenizer.encode("1+1="), 5, SamplingParams(), (2,))


def test_the_prompts_are_the_first_held_out_ones_or_all() -> None:
    task = ArithmeticTask()
    assert held_out_prompts(task, 3) == [task.held_out(index) for index in range(3)]
    assert len(held_out_prompts(task)) == len(held_out_prompts(task, 10**6)) == 1000


def test_answers_are_greedy_in_prompt_order_and_ready_for_the_reward(tokenizer: TextTokenizer) -> None:
    engine = CalculatingEngine(tokenizer)
    evaluator = evaluator_on(engine, tokenizer)
    evaluator.start(FIRST)
    assert {request.sampling.temperature for request in engine.requests} == {0.0}
    assert {request.stop_token_ids for request in engine.requests} == {(2,)}
    assert len({request.seed for request in engine.requests}) == 7
    while not evaluator.done:
        assert evaluator.step() == []
    evaluation = evaluator.result()
    prompts = held_out_prompts(ArithmeticTask(), 7)
    assert [item.prompt for item in evaluation.items] == [prompt.text for prompt in prompts]
    assert [item.payload for item in evaluation.items] == [prompt.payload for prompt in prompts]
    asked = [tokenizer.encode(prompt.text).astype("<i4").tobytes() for prompt in prompts]
    assert [item.prompt_ids for item in evaluation.items] == asked
    assert evaluation.version == FIRST
    assert evaluation.errors == []
    assert evaluation.num_tokens == sum(len(item.completion) + 1 for item in evaluation.items)
    scores = Scorer(resolve_reward("exact_match")).score(evaluation.items)
    assert mean_score(scores) == EvalScore(mean=1.0, num_scored=7, num_failed=0)


def test_one_evaluation_may_have_samples_of_its_own_and_the_next_is_as_ever(tokenizer: TextTokenizer) -> None:
    engine = CalculatingEngine(tokenizer)
    evaluator = evaluator_on(engine, tokenizer)
    evaluator.start(FIRST, EvalSampling(samples=3, temperature=0.7))
    assert [request.sampling.temperature for request in engine.requests] == [0.7] * 21
    assert len({request.seed for request in engine.requests}) == 21
    while not evaluator.done:
        evaluator.step()
    evaluation = evaluator.result()
    assert (evaluation.samples, evaluation.prompts) == (3, [place // 3 for place in range(21)])
    scores = Scorer(resolve_reward("exact_match")).score(evaluation.items)
    assert evaluation_score(evaluation, scores).parts == {"avg@3": 1.0, "pass@3": 1.0}
    assert evaluator.run(FIRST).samples == 1


def test_the_score_is_the_share_of_right_answers(tokenizer: TextTokenizer) -> None:
    prompts = held_out_prompts(ArithmeticTask())
    wrong = sum(int(prompt.text.split("+")[0]) < 50 for prompt in prompts)
    evaluation = evaluator_on(CalculatingEngine(tokenizer, wrong_below=50), tokenizer, max_items=0).run(FIRST)
    scores = Scorer(resolve_reward("exact_match")).score(evaluation.items)
    assert mean_score(scores).mean == pytest.approx(1 - wrong / 1000)


def test_requests_of_the_stream_pass_through(tokenizer: TextTokenizer) -> None:
    engine = CalculatingEngine(tokenizer)
    evaluator = evaluator_on(engine, tokenizer)
    evaluator.start(FIRST)
    engine.submit([stream_request(tokenizer)])
    passed = []
    while engine.has_work:
        passed += evaluator.collect(engine.step())
    assert [result.request_id for result in passed] == ["g.0/1"]
    assert len(evaluator.result().items) == 7


def test_two_evaluations_ask_the_same_under_ids_of_their_own(tokenizer: TextTokenizer) -> None:
    engine = CalculatingEngine(tokenizer)
    evaluator = evaluator_on(engine, tokenizer)
    evaluator.start(FIRST)
    first = list(engine.requests)
    while not evaluator.done:
        evaluator.step()
    engine.version = SECOND
    evaluator.start(SECOND)
    assert [request.seed for request in engine.requests] == [request.seed for request in first]
    assert not {request.request_id for request in engine.requests} & {request.request_id for request in first}


def test_invariant_6_an_answer_of_another_version_is_an_error_and_not_a_score(tokenizer: TextTokenizer) -> None:
    engine = CalculatingEngine(tokenizer)
    evaluator = evaluator_on(engine, tokenizer)
    with pytest.raises(ComponentError, match=r"evaluation of 0\.2: the engine is at 0\.1"):
        evaluator.start(SECOND)
    evaluator.start(FIRST)
    evaluator.step()
    engine.version = SECOND
    with pytest.raises(ComponentError, match=r"has tokens of 0\.2; the version must stay pinned"):
        evaluator.step()


def test_a_prompt_that_the_engine_could_not_answer_is_counted_and_not_scored(tokenizer: TextTokenizer) -> None:
    prompts = held_out_prompts(ArithmeticTask(), 7)
    operand = prompts[2].text.split("+")[0]
    failing = sum(prompt.text.split("+")[0] == operand for prompt in prompts)
    evaluation = evaluator_on(CalculatingEngine(tokenizer, fail=operand), tokenizer).run(FIRST)
    assert len(evaluation.errors) == failing
    assert f"{prompts[2].prompt_id}: out of slots" in evaluation.errors
    scores = Scorer(resolve_reward("exact_match")).score(evaluation.items)
    assert mean_score(scores, len(evaluation.errors)) == EvalScore(1.0, 7 - failing, failing)


def test_one_evaluation_at_a_time_and_no_result_before_its_end(tokenizer: TextTokenizer) -> None:
    evaluator = evaluator_on(CalculatingEngine(tokenizer), tokenizer)
    with pytest.raises(ComponentError, match="no result"):
        evaluator.result()
    evaluator.start(FIRST)
    with pytest.raises(ComponentError, match="waits for 7 answers"):
        evaluator.start(FIRST)
    with pytest.raises(ComponentError, match="7 answers are missing"):
        evaluator.result()


def test_a_cancelled_evaluation_can_be_started_again(tokenizer: TextTokenizer) -> None:
    engine = CalculatingEngine(tokenizer)
    evaluator = evaluator_on(engine, tokenizer)
    evaluator.start(FIRST)
    evaluator.cancel()
    assert evaluator.done
    assert len(evaluator.step()) == 7
    with pytest.raises(ComponentError, match="no result"):
        evaluator.result()


def test_invariant_8_failed_scores_are_counted_and_never_averaged() -> None:
    scores = [Score.ok(1.0), Score.failed("timeout"), Score.ok(0.0), Score.ok(0.5)]
    assert mean_score(scores, num_errors=2) == EvalScore(mean=0.5, num_scored=3, num_failed=3)
    assert mean_score([Score.failed("down")]) == EvalScore(mean=None, num_scored=0, num_failed=1)
