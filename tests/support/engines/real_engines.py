"""Engines around real servers of either kind, for tests, with the models of their versions as transformers has them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import psutil
import torch
from safetensors.torch import load_file
from support.engines.real_models import furthest, logprobs_of, logprobs_with_old_cache, reference, write_model
from transformers import PreTrainedModel

from streamrl.config import Config
from streamrl.engines.build import UNPUBLISHED
from streamrl.engines.server.build import build_server_engine
from streamrl.engines.server.engine import ServerEngine
from streamrl.engines.server.process.place import ServerPlace
from streamrl.models.dtypes import DTYPES
from streamrl.types import (
    FinishReason,
    FloatArray,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    UpdateMode,
    Version,
    VersionSpan,
)

ROOT = Path(__file__).parents[3]
ENGINES = ("vllm", "sglang")
CONTEXT = 16384
LONG = CONTEXT - 32
"""Tokens of a completion that runs until a test has seen enough of it, although the machine may let the test wait for
ten seconds, in which a server makes 5,000 of them."""
_STARTS = 5
CLOSE = 1e-5
"""Largest difference of two log-probs in float32 that is rounding, among some hundred tokens."""
CLOSE_AT_THE_END = 1e-4
"""The same behind 16,000 tokens: 3.1e-5 in one of three runs."""
CLOSE_OF_MANY = 5e-5
"""The same among thousands: the furthest of 32,000 lay 1.0e-5 and 1.5e-5 apart in two runs. Weights of another version,
or keys of one, are off by more than 1e-3."""
RUNNING = 32


class Kind(NamedTuple):
    """Of a server: which engine, with tied embeddings or with a head of its own, in which format, over how many
    ranks, quantised how."""

    name: str
    tied: bool = True
    dtype: str = "float32"
    ranks: int = 1
    quantization: str | None = None

    @property
    def python(self) -> Path:
        return ROOT / f".venvs/{self.name}/bin/python"

    def __str__(self) -> str:
        return f"{self.name}-{'tied' if self.tied else 'separate'}-{self.dtype}-{self.ranks}"


TIED, SEPARATE = [Kind(name) for name in ENGINES], [Kind(name, tied=False) for name in ENGINES]
BFLOAT16 = [Kind(name, dtype="bfloat16") for name in ENGINES]
SHARDED = [Kind(name, ranks=2) for name in ENGINES]
KINDS = [*TIED, *SEPARATE, *BFLOAT16, *SHARDED]


class Served:
    """A server with the models of its versions, in float32. `new_model(seed)`: another one of the same shape. folder:
    of the model that it was started with."""

    def __init__(
        self,
        name: str,
        engine: ServerEngine,
        new_model: Callable[[int], PreTrainedModel],
        dtype: torch.dtype,
        folder: Path,
    ) -> None:
        self.name = name
        self.folder = folder
        self.engine = engine
        self.models = {UNPUBLISHED: new_model(0)}
        self.new_model = new_model
        self._dtype = dtype
        self._steps = 0

    def _prepare(self, count: int) -> None:
        """Make the models of the next versions, so that nobody waits for them while requests run."""
        for step in range(self._steps, self._steps + count):
            if Version(0, step) not in self.models:
                self.models[Version(0, step)] = self.new_model(100 + step)

    @property
    def model(self) -> PreTrainedModel:
        """Of the version that serves."""
        return self.models[self.engine.version]

    @property
    def is_over(self) -> bool:
        return self.engine._closed or self.engine._death is not None

    def load(self, mode: UpdateMode = UpdateMode.KEEP) -> Version:
        """Give the server another model, as the next version."""
        version = Version(0, self._steps)
        self._prepare(1)
        self._steps += 1
        tensors = {name: tensor.to(self._dtype) for name, tensor in self.models[version].state_dict().items()}
        self.engine.load_weights(tensors, version, mode)
        return version

    def load_file(self, mode: UpdateMode) -> Version:
        """The same under the names of the model's own file, as a learner publishes them, of a family that has others
        in memory."""
        version = Version(0, self._steps)
        self._prepare(1)
        self._steps += 1
        path = self.folder.with_name(f"model-{100 + version.step}")
        self.engine.load_weights(load_file(path / "model.safetensors"), version, mode)
        return version

    def answers(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        self.engine.submit(requests)
        return self.rest(len(requests))

    def start(self, requests: Sequence[GenerationRequest]) -> None:
        """Return when each has some tokens, and none has ended. They are sent anew when some are through by then."""
        self._prepare(2)
        for _ in range(_STARTS):
            self.engine.submit(requests)
            through = self._ended_before_all_spoke()
            if not through:
                return
            assert {one.finish_reason for one in through} == {FinishReason.LENGTH}, list(map(in_short, through))
            self.clear()
        raise AssertionError(f"{_STARTS} times some of {len(requests)} requests ended before others had a token")

    def _ended_before_all_spoke(self) -> list[GenerationResult]:
        while not all(one.num_tokens for one in self.engine._running.values()):
            if ended := self.engine.step():
                return ended
        return []

    def step_without_end(self) -> None:
        """A step while nothing may end."""
        ended = [in_short(one) for one in self.engine.step()]
        assert ended == [], ended

    def go_on(self) -> None:
        """Until each that runs has tokens of the version that serves: another one, sent now, has ended under it."""
        ended = [in_short(one) for one in self.answers(requests_of(1, new=24, name="later"))]
        assert ended == [("later/0", FinishReason.LENGTH, "", 24, (VersionSpan(0, self.engine.version),))], ended

    def abort_all(self) -> list[GenerationResult]:
        names = [one.request.request_id for one in self.engine._running.values()]
        self.engine.abort(names)
        return self.rest(len(names))

    def rest(self, count: int) -> list[GenerationResult]:
        ended: list[GenerationResult] = []
        while len(ended) < count:
            ended += self.engine.step()
        return ended

    def clear(self) -> None:
        """End what a test has left running."""
        if self.is_over:
            return
        self.abort_all()
        while self.engine.has_work:
            self.engine.step()

    def assert_parity(self, requests: Sequence[GenerationRequest], close: float = CLOSE) -> None:
        """Every completion is of the version that serves, to the last bits."""
        by_id = {request.request_id: request for request in requests}
        for result in self.answers(requests):
            assert result.error == ""
            assert result.version_spans == (VersionSpan(0, self.engine.version),)
            far = furthest(result.logprobs, expected(self.model, by_id[result.request_id], result.token_ids))
            assert far <= close, far

    def processes(self) -> list[psutil.Process]:
        """The server's own, the first one first."""
        server = self.engine._server._process
        assert server is not None
        return psutil.Process(server.session).children(recursive=True)


@contextmanager
def served(
    kind: Kind,
    folder: Path,
    write: Callable[[Path, int], object] | None = None,
    context: int = CONTEXT,
    *,
    routes: bool = False,
) -> Iterator[Served]:
    """A server of the kind, with version UNPUBLISHED; model folders are written to `folder`. write: makes the folder of
    a seed's model, in place of the preset's. routes: it names the experts of each token."""

    def new_model(seed: int) -> PreTrainedModel:
        path = folder / f"model-{seed}"
        if not path.exists():
            if write is None:
                write_model(path, seed, context=context, tied=kind.tied, dtype=kind.dtype)
            else:
                write(path, seed)
        return reference(path)

    new_model(0)
    tree = {
        "model": {"path": str(folder / "model-0"), "dtype": kind.dtype},
        "rollout": {
            "engine": kind.name,
            "slots": RUNNING + 4,
            "kv_bytes": 2**28,
            "server": {"tensor_parallel": kind.ranks, "quantization": kind.quantization},
        },
        "learner": {"router_replay": routes},
        "deadlines": {"start_s": 600, "update_s": 60, "rollout_s": 120},
    }
    config = msgspec.convert(tree, Config)
    place = ServerPlace(ROOT, f"streamrl-test-{kind.name}")
    engine = build_server_engine(config, folder / "model-0", context, place, UNPUBLISHED)
    try:
        yield Served(kind.name, engine, new_model, DTYPES[kind.dtype], folder / "model-0")
    finally:
        engine.close()


def requests_of(
    count: int, *, new: int = 24, temperature: float = 1.0, length: int = 5, stop: tuple[int, ...] = (), name: str = "r"
) -> list[GenerationRequest]:
    random = np.random.default_rng(count)
    sampling = SamplingParams(temperature=temperature, max_new_tokens=new)
    prompts = [random.integers(3, 22, length + i % 7, dtype=np.int32) for i in range(count)]
    return [GenerationRequest(f"{name}/{i}", ids, i, sampling, stop) for i, ids in enumerate(prompts)]


def expected(
    model: PreTrainedModel, request: GenerationRequest, ids: np.ndarray, temperature: float | None = None
) -> FloatArray:
    """Log-probs of the completion `ids`, read by the model at once. Temperature 0 leaves the logits as they are."""
    given = request.sampling.temperature if temperature is None else temperature
    return logprobs_of(model, request.prompt_ids.tolist(), ids.tolist(), given or 1.0)


def expected_with_kept_keys(
    old: PreTrainedModel, new: PreTrainedModel, request: GenerationRequest, ids: np.ndarray, switch: int
) -> FloatArray:
    """Log-probs of the tokens from `switch` on, which `new` sampled behind keys and values of `old`."""
    temperature = request.sampling.temperature
    return logprobs_with_old_cache(old, new, request.prompt_ids.tolist(), ids.tolist(), switch, temperature)


def in_short(result: GenerationResult) -> tuple[str, FinishReason, str, int, tuple[VersionSpan, ...]]:
    """What it ended as, without its tokens: words for a failed test."""
    return result.request_id, result.finish_reason, result.error, len(result.token_ids), result.version_spans


def still_running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended within some seconds. A killed one may be a zombie until whoever inherited it looks."""
    return [one for one in psutil.wait_procs(processes, timeout=5)[1] if one.status() != psutil.STATUS_ZOMBIE]


def step_until_it_raises(engine: ServerEngine) -> None:
    while True:
        engine.step()
