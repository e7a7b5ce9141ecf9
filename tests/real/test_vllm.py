"""A real vLLM server on this machine's CPU, against transformers: log-probs, versions in flight, aborts, ends.

Two servers are started for all of it, one for tied and one for separate embeddings; the last test of each ends it.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from streamrl.config import Config
from streamrl.engines.build import UNPUBLISHED
from streamrl.engines.server.build import build_server_engine
from streamrl.engines.server.engine import ServerEngine
from streamrl.engines.server.place import ServerPlace
from streamrl.errors import ComponentError, ProcessDiedError
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    SamplingParams,
    UpdateMode,
    Version,
    VersionSpan,
)

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venvs/vllm/bin/python"
VOCAB, CONTEXT = 97, 1024
LONG = 1000
"""Tokens of a completion that runs long enough for an update in its middle."""
CLOSE = 1e-5
"""Largest difference of two log-probs in float32 that is rounding."""

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="needs .venvs/vllm: make engines"),
    pytest.mark.timeout(900),
]


def make_model(seed: int, *, tied: bool) -> Qwen3ForCausalLM:
    """Weights so large that two models, or two temperatures, cannot be mistaken for each other."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the least that vLLM has on a CPU
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config).eval()


class Served:
    """A server with the models of its versions, each as transformers has it."""

    def __init__(self, engine: ServerEngine, first: Qwen3ForCausalLM, tied: bool) -> None:
        self.engine = engine
        self.models = {UNPUBLISHED: first}
        self._tied = tied

    def load(self, mode: UpdateMode = UpdateMode.KEEP) -> Version:
        """Give the server another model, as the next version."""
        step = max(self.models).step + 1
        version = Version(0, step)
        self.models[version] = make_model(100 + step, tied=self._tied)
        self.engine.load_weights(self.models[version].state_dict(), version, mode)
        return version

    def answers(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        self.engine.submit(requests)
        return self.rest(len(requests))

    def start(self, requests: Sequence[GenerationRequest]) -> None:
        """Return when each has some tokens, and none has ended."""
        self.engine.submit(requests)
        started: set[str] = set()
        while len(started) < len(requests):
            assert self.engine.step() == []
            started |= {piece.request_id for piece in self.engine.partials(1)}

    def clear(self) -> None:
        """End what a test has left running."""
        if self.engine._closed or self.engine._death is not None:
            return
        self.engine.abort([one.request.request_id for one in self.engine._running.values()])
        while self.engine.has_work:
            self.engine.step()

    def rest(self, count: int) -> list[GenerationResult]:
        ended: list[GenerationResult] = []
        while len(ended) < count:
            ended += self.engine.step()
        return ended


def served(folder: Path, *, tied: bool) -> Iterator[Served]:
    first = make_model(0, tied=tied)
    first.save_pretrained(folder)
    tree = {
        "model": {"path": str(folder)},
        "rollout": {"engine": "vllm", "slots": 32, "kv_bytes": 2**26, "server": {"python": str(PYTHON)}},
        "deadlines": {"start_s": 600, "update_s": 60, "rollout_s": 120},
    }
    place = ServerPlace(ROOT, "streamrl-test")
    engine = build_server_engine(msgspec.convert(tree, Config), folder, CONTEXT, place, UNPUBLISHED)
    try:
        yield Served(engine, first, tied)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def tied_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from served(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="module")
def separate_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from served(tmp_path_factory.mktemp("separate"), tied=False)


@pytest.fixture
def tied(tied_server: Served) -> Iterator[Served]:
    yield tied_server
    tied_server.clear()


@pytest.fixture
def separate(separate_server: Served) -> Iterator[Served]:
    yield separate_server
    separate_server.clear()


def requests_of(
    count: int, *, new: int = 24, temperature: float = 1.0, length: int = 5, stop: tuple[int, ...] = (), name: str = "r"
) -> list[GenerationRequest]:
    random = np.random.default_rng(count)
    sampling = SamplingParams(temperature=temperature, max_new_tokens=new)
    prompts = [random.integers(0, VOCAB, length + i % 7, dtype=np.int32) for i in range(count)]
    return [GenerationRequest(f"{name}/{i}", ids, i, sampling, stop) for i, ids in enumerate(prompts)]


@torch.inference_mode()
def expected(
    model: Qwen3ForCausalLM, request: GenerationRequest, ids: np.ndarray, temperature: float | None = None
) -> np.ndarray:
    """Log-probs of the completion `ids`, read by the model at once. Temperature 0 leaves the logits as they are."""
    whole = torch.from_numpy(np.concatenate([request.prompt_ids, ids]).astype(np.int64))[None]
    logits = model(whole).logits[0, len(request.prompt_ids) - 1 : -1]
    return at(logits, ids, request.sampling.temperature if temperature is None else temperature)


def at(logits: torch.Tensor, ids: np.ndarray, temperature: float) -> np.ndarray:
    logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
    return logprobs.gather(-1, torch.from_numpy(ids.astype(np.int64))[:, None])[:, 0].numpy()


@torch.inference_mode()
def expected_with_kept_keys(
    old: Qwen3ForCausalLM, new: Qwen3ForCausalLM, request: GenerationRequest, ids: np.ndarray, switch: int
) -> np.ndarray:
    """Log-probs of the tokens from `switch` on, which `new` sampled behind keys and values of `old`."""
    whole = torch.from_numpy(np.concatenate([request.prompt_ids, ids]).astype(np.int64))[None]
    first = len(request.prompt_ids) + switch - 1
    cache = DynamicCache(config=old.config)
    old(whole[:, :first], past_key_values=cache, use_cache=True)
    logits = new(whole[:, first:], past_key_values=cache, use_cache=True).logits[0, :-1]
    return at(logits, ids[switch:], request.sampling.temperature)


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(found - wanted).max() <= CLOSE, np.abs(found - wanted).max()


def assert_parity(served: Served, requests: Sequence[GenerationRequest]) -> None:
    """Every completion is of the version that serves, to the last bits."""
    by_id = {request.request_id: request for request in requests}
    for result in served.answers(requests):
        assert result.error == ""
        assert result.version_spans == (VersionSpan(0, served.engine.version),)
        model = served.models[served.engine.version]
        assert_close(result.logprobs, expected(model, by_id[result.request_id], result.token_ids))


def step_until_it_raises(engine: ServerEngine) -> None:
    while True:
        engine.step()


def family(engine: ServerEngine) -> list[psutil.Process]:
    """The server's own processes, the first one first."""
    keeper = psutil.Process(engine._server._process.session)
    return keeper.children(recursive=True)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("which", ["tied", "separate"])
def test_log_probs_are_those_of_transformers_before_and_after_an_update(
    which: str, temperature: float, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(which)
    requests = requests_of(8, temperature=temperature)
    assert_parity(served, requests)
    before = served.engine.version
    served.load()
    assert_parity(served, requests)
    ids = np.arange(10, dtype=np.int32)
    apart = expected(served.models[before], requests[0], ids) - expected(
        served.models[served.engine.version], requests[0], ids
    )
    assert np.abs(apart).max() > 0.1, "two versions that cannot be told apart prove nothing"


def test_the_seed_decides_the_tokens_and_a_stop_token_ends_them(tied: Served) -> None:
    requests = requests_of(8, stop=tuple(range(0, VOCAB, 9)))
    first, again = ({one.request_id: one.token_ids.tolist() for one in tied.answers(requests)} for _ in range(2))
    assert first == again
    other = [GenerationRequest("r/0", requests[0].prompt_ids, 12345, requests[0].sampling, ())]
    assert tied.answers(other)[0].token_ids.tolist() != first["r/0"]
    stopped = [one for one in tied.answers(requests) if one.finish_reason is FinishReason.STOP]
    assert stopped
    for one in stopped:
        assert one.token_ids[-1] % 9 == 0
        assert (one.token_ids[:-1] % 9).all()


def test_a_request_goes_on_behind_its_tokens(tied: Served) -> None:
    (request,) = requests_of(1, new=12)
    (whole,) = tied.answers([request])
    serves = tied.engine.version
    so_far = PartialTokens("r/0", 0, whole.token_ids[:5], whole.logprobs[:5], (VersionSpan(0, serves),))
    (result,) = tied.answers([replace(request, so_far=so_far)])
    assert result.token_ids[:5].tolist() == whole.token_ids[:5].tolist()
    assert len(result.token_ids) == 12
    assert result.version_spans == (VersionSpan(0, serves),)
    assert_close(result.logprobs, expected(tied.models[serves], request, result.token_ids))


def test_a_prompt_that_was_read_by_the_old_version_is_read_again_by_the_new_one(tied: Served) -> None:
    requests = requests_of(4, new=4, length=300)
    assert_parity(tied, requests)
    assert_parity(tied, requests)  # from the cache, now
    tied.load(UpdateMode.KEEP)
    assert_parity(tied, requests)


@pytest.mark.parametrize("mode", list(UpdateMode))
def test_versions_in_flight(mode: UpdateMode, tied: Served) -> None:
    requests = requests_of(32, new=LONG, temperature=0.7)
    old = tied.engine.version
    tied.start(requests)
    new = tied.load(mode)
    results = tied.rest(32)
    assert tied.engine.version == new
    by_id = {request.request_id: request for request in requests}
    for result in results:
        request = by_id[result.request_id]
        assert len(result.token_ids) == LONG
        assert_close_at_each_version(tied, mode, request, result, (old, new))


def assert_close_at_each_version(
    served: Served,
    mode: UpdateMode,
    request: GenerationRequest,
    result: GenerationResult,
    versions: tuple[Version, Version],
) -> None:
    old, new = versions
    ids = result.token_ids
    if mode is UpdateMode.DRAIN:
        assert result.version_spans == (VersionSpan(0, old),)
        assert_close(result.logprobs, expected(served.models[old], request, ids))
        return
    first, second = result.version_spans
    assert (first, second.version) == (VersionSpan(0, old), new)
    switch = second.start
    assert 0 < switch < LONG
    assert_close(result.logprobs[:switch], expected(served.models[old], request, ids)[:switch])
    if mode is UpdateMode.RECOMPUTE:
        behind = expected(served.models[new], request, ids)[switch:]
    else:
        behind = expected_with_kept_keys(served.models[old], served.models[new], request, ids, switch)
    assert_close(result.logprobs[switch:], behind)


def test_partial_tokens_are_those_of_the_result(tied: Served) -> None:
    engine = tied.engine
    requests = requests_of(4, new=LONG)
    engine.submit(requests)
    told: dict[str, list[int]] = {request.request_id: [] for request in requests}
    ended: list[GenerationResult] = []
    while len(ended) < 4:
        ended += engine.step()
        for piece in engine.partials(16):
            assert piece.start == len(told[piece.request_id])
            assert piece.version_spans == (VersionSpan(piece.start, engine.version),)
            told[piece.request_id] += piece.token_ids.tolist()
    for result in ended:
        assert len(told[result.request_id]) >= LONG // 2
        assert result.token_ids[: len(told[result.request_id])].tolist() == told[result.request_id]


def test_an_abort_ends_one_with_its_tokens_and_their_versions(tied: Served) -> None:
    engine = tied.engine
    requests = requests_of(2, new=LONG)
    old = engine.version
    tied.start(requests)
    new = tied.load(UpdateMode.RECOMPUTE)
    # When one that was sent after the update has ended, the others have tokens of the new version, too.
    (later,) = tied.answers(requests_of(1, new=24, name="later"))
    assert later.version_spans == (VersionSpan(0, new),)
    engine.abort(["r/0"])
    (aborted,) = tied.rest(1)
    assert (aborted.request_id, aborted.finish_reason) == ("r/0", FinishReason.ABORT)
    first, second = aborted.version_spans
    assert (first.version, second.version) == (old, new)
    ids = aborted.token_ids
    assert_close(aborted.logprobs[: second.start], expected(tied.models[old], requests[0], ids)[: second.start])
    assert_close(aborted.logprobs[second.start :], expected(tied.models[new], requests[0], ids)[second.start :])
    (other,) = tied.rest(1)
    assert (other.request_id, other.finish_reason, len(other.token_ids)) == ("r/1", FinishReason.LENGTH, LONG)


def test_what_the_server_says_of_its_cache_is_told(tied: Served) -> None:
    engine = tied.engine
    engine.submit(requests_of(8, new=LONG, length=10))
    used = 0
    while engine.has_work:
        engine.step()
        used = max(used, engine.stats().kv_bytes_used)
    assert 0 < used <= engine.stats().kv_bytes_total


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape"])
def test_weights_of_another_model_are_refused_and_the_old_ones_serve_on(fault: str, tied: Served) -> None:
    tensors = dict(make_model(7, tied=True).state_dict())
    if fault == "missing":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    elif fault == "unknown":
        tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(128, 64)
    else:
        tensors["model.norm.weight"] = torch.zeros(65)
    with pytest.raises(ComponentError, match="serves on") as caught:
        tied.engine.load_weights(tensors, Version(9, 9), UpdateMode.KEEP)
    assert not isinstance(caught.value, ProcessDiedError)
    assert_parity(tied, requests_of(4))


def test_nobody_else_on_the_machine_reaches_the_server(tied: Served) -> None:
    folder = tied.engine._server.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "socket").is_socket()
    for process in family(tied.engine):
        for connection in process.net_connections("tcp"):
            assert connection.status != psutil.CONN_LISTEN or connection.laddr.ip in ("127.0.0.1", "::1")


def test_a_server_that_falls_silent_is_dead_to_its_engine(tied: Served) -> None:
    impatient = ServerEngine(tied.engine._server, tied.engine.version, replace(tied.engine._limits, silence_s=1.0))
    processes = family(tied.engine)
    for process in processes:
        process.suspend()
    impatient.submit(requests_of(1, name="silent"))
    with pytest.raises(ProcessDiedError, match=r"no word of request silent/0 for 1 s"):
        step_until_it_raises(impatient)
    for process in processes:
        process.resume()


def test_a_server_that_is_killed_while_it_generates_is_told_and_leaves_nothing(tied: Served) -> None:
    engine, processes = tied.engine, family(tied.engine)
    tied.start(requests_of(8, new=LONG))
    processes[0].kill()
    with pytest.raises(ProcessDiedError, match=r"^vllm: .*its process ended with signal SIGKILL"):
        step_until_it_raises(engine)
    engine.close()
    assert not any(process.is_running() for process in processes)
    assert not engine._server.folder.exists()


def test_a_server_that_is_killed_while_it_takes_a_version_is_told_and_leaves_nothing(separate: Served) -> None:
    engine, processes = separate.engine, family(separate.engine)
    for process in processes:
        process.suspend()
    killer = threading.Timer(1.0, os.kill, [processes[0].pid, signal.SIGKILL])
    killer.start()
    with pytest.raises(ProcessDiedError, match=r"the connection broke.*its process ended with signal SIGKILL"):
        separate.load()
    killer.join()
    with pytest.raises(ProcessDiedError):
        engine.step()
    engine.close()
    assert not any(process.is_running() for process in processes)
    assert not engine._server.folder.exists()
