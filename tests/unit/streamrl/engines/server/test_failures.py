"""What goes wrong with a server: an answer that cannot be trusted is an error of its request, a server that cannot be
trusted is dead, and an update leaves one version or none."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.engines.fake_vllm import FakeVllm, fake_engine

from streamrl.engines.server.engine import ServerEngine
from streamrl.engines.server.model_tensors import ModelTensors
from streamrl.engines.server.process.private_folder import remove_private_folder
from streamrl.errors import ComponentError, ProcessDiedError
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, SamplingParams, UpdateMode, Version

OLD, NEW, NEWER = Version(0, 0), Version(0, 1), Version(0, 2)
GENERATE = "/inference/v1/generate"
WEIGHTS = {"model.norm.weight": torch.zeros(2)}
NOT_OF_THIS_MODEL = {"error": "tensor 'x' is not of this model"}


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm()


@pytest.fixture
def engine(fake: FakeVllm) -> Iterator[ServerEngine]:
    with fake_engine(fake) as engine:
        yield engine


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, np.array([1, 4, 5], np.int32), 7, SamplingParams(max_new_tokens=8), ())


def result_of(engine: ServerEngine) -> GenerationResult:
    ended: list[GenerationResult] = []
    while not ended:
        ended = engine.step()
    (result,) = ended
    return result


def step_until_it_raises(engine: ServerEngine) -> None:
    while True:
        engine.step()


def logprob_of(choice: dict[str, Any], place: int, value: float | None) -> None:
    if choice["finish_reason"]:
        choice["logprobs"]["content"][place]["logprob"] = value


def label(name: str) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        for span in choice["weight_versions"] or []:
            span["version"] = name

    return change


ODD_ANSWERS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a log-prob that was NaN": (lambda choice: logprob_of(choice, 2, -9999.0), "log-prob of token 2 is nan"),
    "no log-prob": (lambda choice: logprob_of(choice, 2, None), "log-prob of token 2 is nan"),
    "fewer log-probs than tokens": (
        lambda choice: choice["logprobs"]["content"].pop(),
        "8 tokens came with 7 log-probs",
    ),
    "no log-probs": (lambda choice: choice.update(logprobs=None), "8 tokens came with 0 log-probs"),
    "an end of another kind": (lambda choice: choice.update(finish_reason="repetition"), "'repetition'"),
    "a version of others": (label("4.2"), "version 4.2 sampled it, and was only given 0.0"),
    "a label of others": (label("step-7"), "'step-7', which was not loaded by streamrl"),
    "a version that goes back": (
        lambda choice: choice.update(
            weight_versions=[{"version": "0.0", "start": 0, "end": 4}, {"version": "-1.0", "start": 4, "end": 8}]
        ),
        "do not cover its 8 tokens in order",
    ),
    "versions of more tokens than there are": (
        lambda choice: choice.update(
            weight_versions=[{"version": "0.0", "start": 0, "end": 9}, {"version": "0.0", "start": 9, "end": 10}]
        ),
        "do not cover its 8 tokens in order",
    ),
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_an_answer_that_cannot_be_trusted_is_an_error_without_tokens(
    name: str, fake: FakeVllm, engine: ServerEngine
) -> None:
    fake.odd, words = ODD_ANSWERS[name]
    fake.at_once = True
    engine.submit([request("one")])
    result = result_of(engine)
    assert result.finish_reason is FinishReason.ERROR
    assert words in result.error
    assert len(result.token_ids) == len(result.logprobs) == len(result.version_spans) == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "prompt too long", "code": 400}}, "prompt too long"),
        ({"error": "prompt too long"}, "prompt too long"),
        ({"object": "error", "message": "prompt too long"}, "prompt too long"),
        ({"detail": [{"msg": "prompt too long"}]}, "prompt too long"),
    ],
)
def test_a_request_that_the_server_refuses_is_an_error_with_its_words(
    body: Any, words: str, fake: FakeVllm, engine: ServerEngine
) -> None:
    fake.answers[GENERATE] = (400, body)
    engine.submit([request("one")])
    result = result_of(engine)
    assert result.finish_reason is FinishReason.ERROR
    assert f"POST {GENERATE} answers 400" in result.error
    assert words in result.error


def test_a_refusal_in_the_middle_of_a_stream_is_an_error_of_the_request(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.sample(2)
    fake.say("one", {"error": {"message": "no such adapter", "code": 404}})
    result = result_of(engine)
    assert (result.finish_reason, result.error) == (FinishReason.ERROR, "no such adapter")


def test_a_failure_of_the_server_in_the_middle_of_a_stream_is_its_death(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.say("one", {"error": {"message": "EngineCore encountered an issue", "code": 500}})
    with pytest.raises(ProcessDiedError, match="breaks off with error 500: EngineCore encountered an issue"):
        step_until_it_raises(engine)


def test_an_answer_that_is_none_is_the_servers_death(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.say("one", {"choices": [{"token_ids": "ten"}]})
    with pytest.raises(ProcessDiedError, match="a chunk of the answer cannot be read"):
        step_until_it_raises(engine)


def test_one_bad_request_does_not_touch_the_others(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("bad"), request("good")])
    fake.wait_for(2)
    fake.odd = lambda choice: choice.update(finish_reason="repetition") if fake.running.keys() == {"good"} else None
    fake.sample(8, "bad")
    assert result_of(engine).finish_reason is FinishReason.ERROR
    fake.odd = lambda choice: None
    fake.sample(8, "good")
    assert result_of(engine).finish_reason is FinishReason.LENGTH


def test_a_server_that_fails_is_dead_with_its_words(fake: FakeVllm, engine: ServerEngine) -> None:
    fake.answers[GENERATE] = (500, {"error": {"message": "EngineCore encountered an issue"}})
    engine.submit([request("one")])
    with pytest.raises(ProcessDiedError, match=r"^vllm: POST /inference/v1/generate answers 500: EngineCore encount"):
        step_until_it_raises(engine)
    assert engine.has_work
    with pytest.raises(ProcessDiedError):
        engine.step()


def test_a_connection_that_breaks_in_the_middle_of_a_stream_is_the_servers_death(
    fake: FakeVllm, engine: ServerEngine
) -> None:
    engine.submit([request("one"), request("two")])
    fake.wait_for(2)
    fake.sample(3)
    fake.say("one", None)
    with pytest.raises(ProcessDiedError, match=r"^vllm: POST /inference/v1/generate: the connection broke"):
        step_until_it_raises(engine)


def test_a_server_that_says_nothing_of_a_request_is_dead(fake: FakeVllm) -> None:
    with fake_engine(fake, silence_s=0.2) as engine:
        engine.submit([request("one")])
        with pytest.raises(ProcessDiedError, match=r"no word of request one for 0\.2 s"):
            step_until_it_raises(engine)


def test_an_abort_that_fails_is_the_servers_death(fake: FakeVllm, engine: ServerEngine) -> None:
    fake.answers["/abort_requests"] = (500, {"error": "no engine"})
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.sample(1)
    assert engine.step() == []  # the server has begun it
    engine.abort(["one"])
    with pytest.raises(ProcessDiedError, match="POST /abort_requests answers 500: no engine"):
        step_until_it_raises(engine)


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc"])
def test_a_version_that_is_refused_leaves_the_old_one_serving(path: str, fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.sample(2)
    if path == "/pause":
        fake.after[path] = (500, NOT_OF_THIS_MODEL)
    else:
        fake.refused = "tensor 'x' is not of this model"
    words = r"version 0\.1 was refused, version 0\.0 serves on: .*not of this model"
    with pytest.raises(ComponentError, match=words) as caught:
        engine.load_weights(WEIGHTS, NEW, UpdateMode.RECOMPUTE)
    assert not isinstance(caught.value, ProcessDiedError)
    assert engine.version == OLD
    assert not fake.paused
    assert [path.name for path in engine._server.folder.iterdir()] == ["socket"]
    fake.sample(6)
    assert [span.version for span in result_of(engine).version_spans] == [OLD]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({}, r"tensor model\.norm\.weight is missing, and 0 more"),
        ({"model.norm.weight": 2, "other": 2}, r"tensor other is not of this model, and 0 more"),
        ({"model.norm.weight": 2, "lm_head.weight": 2}, r"tensor lm_head\.weight is not of this model"),
        ({"model.norm.weight": 3}, r"tensor model\.norm\.weight has shape \(3,\); this model has \(2,\)"),
    ],
)
def test_weights_that_are_not_the_models_are_refused_before_the_server_sees_them(
    shapes: dict[str, int], words: str, fake: FakeVllm, engine: ServerEngine
) -> None:
    engine._limits = replace(engine._limits, tensors=ModelTensors({"model.norm.weight": (2,)}, tied=False))
    with pytest.raises(ComponentError, match=rf"version 0\.1 was refused, version 0\.0 serves on: .*{words}"):
        engine.load_weights({name: torch.zeros(size) for name, size in shapes.items()}, NEW, UpdateMode.KEEP)
    assert fake.calls == []
    assert engine.version == OLD


def test_a_server_whose_folder_went_with_it_is_dead_and_has_not_run_out_of_room(
    engine: ServerEngine,
) -> None:
    remove_private_folder(engine._server.folder)
    with pytest.raises(ProcessDiedError, match=r"vllm: .*No such file or directory"):
        engine.load_weights(WEIGHTS, NEW, UpdateMode.KEEP)
    with pytest.raises(ProcessDiedError, match="vllm: "):
        engine.step()


def test_a_tied_head_may_be_a_tensor_of_its_own_or_not() -> None:
    model = ModelTensors({"model.embed_tokens.weight": (4, 2), "lm_head.weight": (4, 2)}, tied=True)
    embedding = {"model.embed_tokens.weight": torch.zeros(4, 2)}
    assert model.fault_of(embedding) == ""
    assert model.fault_of(embedding | {"lm_head.weight": torch.zeros(4, 2)}) == ""
    assert (
        ModelTensors({"model.embed_tokens.weight": (4, 2)}, tied=True).fault_of(
            embedding | {"lm_head.weight": torch.zeros(4, 2)}
        )
        == ""
    )


@pytest.mark.parametrize("held", [[None, "0.0"], ["0.1", "0.0"], ["0.1", "0.1"]], ids=["torn", "mixed", "unlabelled"])
def test_weights_that_nobody_can_name_sample_nothing_more_and_end_the_server(
    held: list[str | None], fake: FakeVllm, engine: ServerEngine
) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    fake.broken_by = (500, NOT_OF_THIS_MODEL, held)
    with pytest.raises(ProcessDiedError, match="not of this model"):
        engine.load_weights(WEIGHTS, NEW, UpdateMode.KEEP)
    assert fake.paused
    with pytest.raises(ProcessDiedError, match="not of this model"):
        engine.step()


def test_loaded_weights_whose_label_is_refused_end_the_server(fake: FakeVllm, engine: ServerEngine) -> None:
    fake.answers["/update_weight_version"] = (500, {"error": "no label"})
    with pytest.raises(ProcessDiedError, match="no label"):
        engine.load_weights(WEIGHTS, NEW, UpdateMode.KEEP)
    assert fake.paused


def test_a_verb_that_fails_after_its_work_leaves_a_server_that_has_the_new_version_and_is_not_trusted(
    fake: FakeVllm, engine: ServerEngine
) -> None:
    fake.after["/update_weight_version"] = (500, {"error": "lost the answer"})
    with pytest.raises(ProcessDiedError, match="lost the answer"):
        engine.load_weights(WEIGHTS, NEW, UpdateMode.KEEP)


def test_a_server_that_cannot_be_resumed_is_dead(fake: FakeVllm, engine: ServerEngine) -> None:
    fake.answers["/resume"] = (500, {"error": "stuck"})
    with pytest.raises(ProcessDiedError, match="POST /resume answers 500: stuck"):
        engine.load_weights(WEIGHTS, NEW, UpdateMode.KEEP)


def test_an_update_that_never_ends_is_the_servers_death_whatever_it_says_it_serves(fake: FakeVllm) -> None:
    fake.hung.add("/update_weight_version")
    with fake_engine(fake, update_s=0.3) as engine:
        with pytest.raises(ProcessDiedError, match=r"taking up version 0\.1 took longer than 0\.3 s"):
            engine.load_weights(WEIGHTS, NEW, UpdateMode.KEEP)
        assert "/weight_info" not in fake.paths()


def test_a_drained_version_that_is_refused_is_told_by_the_step(fake: FakeVllm, engine: ServerEngine) -> None:
    engine.submit([request("one")])
    fake.wait_for(1)
    engine.load_weights(WEIGHTS, NEW, UpdateMode.DRAIN)
    fake.answers["/pause"] = (503, {"error": "busy"})
    fake.sample(8)
    with pytest.raises(ComponentError, match=r"version 0\.1 was refused, version 0\.0 serves on"):
        step_until_it_raises(engine)


def test_nothing_that_is_not_a_number_passes(fake: FakeVllm, engine: ServerEngine) -> None:
    fake.at_once = True
    engine.submit([request("one")])
    assert all(math.isfinite(value) for value in result_of(engine).logprobs)
