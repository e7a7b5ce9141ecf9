"""SGLang's routes, as what a rollout engine needs of a server. Measured with release 0.5.23.

Guarantees, beyond those of the protocol: a new request never reads a prefix's KV that another version computed (the
prefix cache is keyed by version), an abort ends its own request and no other, and after a failed update either the
version before it serves, or nothing is sampled any more and `serves` is None.

* Log-probs are those of the softmax of the logits over the temperature: of what is sampled, unless it is truncated. So
  top-p, top-k and min-p are refused. `SGLANG_RETURN_ORIGINAL_LOGPROB` would leave the temperature out;
  `sglang_command` switches it off. A greedy request gives the plain log-softmax, as the torch engine does.
* A seed is sent, but counts only on a server with `--enable-deterministic-inference`, which no attention for CPUs
  supports. Otherwise two runs of one request differ.
* A completion ends at the model's own end tokens too, whatever `stop_token_ids` says, unless that is empty.
* A tensor that is missing in an update keeps its old value, and one that is unknown is left out; the server is
  silent. Whoever writes the folder answers for its being whole (`streamrl.engines.server.model_tensors`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open

from streamrl.engines.server.contract import Piece
from streamrl.engines.server.http import Answer, Http
from streamrl.engines.server.sendings import Sendings, Sent
from streamrl.engines.server.sglang.answers import (
    UNLABELLED,
    ChunkReader,
    check_server,
    read_load,
    read_version,
    was_tried,
)
from streamrl.errors import ComponentError, DataError, ProcessDiedError
from streamrl.models.grammars import with_blanks
from streamrl.types import (
    GenerationRequest,
    Grammar,
    GrammarKind,
    SamplingParams,
    ServerLoad,
    UpdateMode,
    Version,
)

_PAUSES = {
    # Requests stay where they are with their KV; the cache cannot be flushed under them, and an update that tries to
    # answers 400 although it changed the weights.
    UpdateMode.KEEP: ("in_place", False),
    # Requests go back to the queue without their KV, which is computed anew when generation goes on.
    UpdateMode.RECOMPUTE: ("retract", True),
    UpdateMode.DRAIN: ("retract", True),
}
"""How generation pauses for an update, and whether the update empties the caches."""

_T = TypeVar("_T")


class SglangContract:
    """One SGLang server, for one event loop. See `ServerContract`."""

    def __init__(self, http: Http, routes: tuple[int, int] | None = None) -> None:
        """routes: layers and experts of a token, of a server that is asked where tokens go."""
        self._http = http
        self._routes = routes
        self._sendings = Sendings(self._ask)
        self._label = UNLABELLED
        self._certain = True

    async def ready(self) -> bool:
        try:
            return (await self._http.get("/ready")).ok
        except ProcessDiedError:
            return False

    async def identify(self) -> str:
        return _read(await self._http.get("/server_info"), check_server)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Piece]:
        if fault := _unsupported(request.sampling):
            yield Piece.failed(fault)
            return
        async for piece in self._sendings.pieces(request):
            yield piece

    async def abort(self, request_ids: Sequence[str]) -> None:
        names = self._sendings.drop(request_ids)
        for answer in await asyncio.gather(*(self._http.post("/abort_request", {"rid": name}) for name in names)):
            _accepted(answer)

    async def update(self, weights: Path, version: Version, mode: UpdateMode) -> None:
        _check_files(weights)
        self._sendings.close_gate()
        try:
            if mode is UpdateMode.KEEP:
                await self._sendings.take_back_unacknowledged()
            await self._replace(weights, version, mode)
        finally:
            # Of a server that is not certain nothing more is asked; what waits here ends with it.
            if self._certain:
                self._sendings.open_gate()

    async def serves(self) -> Version | None:
        return _read(await self._http.get("/model_info"), read_version) if self._certain else None

    async def load(self) -> ServerLoad:
        return _read(await self._http.get("/v1/loads?include=core"), read_load)

    async def close(self) -> None:
        await self._http.close()

    async def _ask(self, sent: Sent) -> AsyncIterator[Piece]:
        request = sent.request
        prompt = request.prompt_ids if request.prompt_logprobs else None
        reader = ChunkReader(_still_to_come(request), request.top_logprobs, prompt, self._routes)
        body = _body(sent.request, sent.rid, self._label) | {"return_routed_experts": self._routes is not None}
        async with self._http.stream("/generate", body) as stream:
            if not stream.ok:
                answer = await stream.whole()
                if answer.status >= 500:  # not the request's fault
                    raise answer.refusal()
                yield Piece.failed(str(answer.refusal()))
                return
            try:
                async for data in stream.events():
                    yield (piece := reader.read(data))
                    if piece.finish_reason is not None:
                        return
            except DataError as error:
                yield Piece.failed(f"POST /generate answers what makes no sense: {error}")
                return
        yield Piece.failed("the server ended the stream without a word on why")

    async def _replace(self, weights: Path, version: Version, mode: UpdateMode) -> None:
        pause, flush = _PAUSES[mode]
        body = {"model_path": str(weights), "weight_version": str(version), "flush_cache": flush}
        # Until an answer says otherwise: one that is lost, or not waited for, may have changed the weights. The server
        # is then left paused, so that nothing is sampled from what may be a mixture.
        self._certain = False
        loaded = await self._http.post("/pause_generation", {"mode": pause})
        if loaded.ok:
            loaded = await self._http.post("/update_weights_from_disk", body)
        if loaded.ok:
            await self._check_label(version)
        elif was_tried(loaded.content):
            # It says that it goes back to the weights before; but it would read them from the folder that just failed.
            raise ComponentError(f"{loaded.refusal()}: its weights may be a mixture, so it must be ended")
        _accepted(await self._http.post("/continue_generation", {}))
        self._certain = True
        _accepted(loaded)
        self._label = str(version)

    async def _check_label(self, version: Version) -> None:
        found = _read(await self._http.get("/model_info"), read_version)
        if found != version:
            raise ComponentError(
                f"GET /model_info: the server took weights as version {version} and says that it serves {found}: "
                "which ones answer is not known, so it must be ended"
            )


def _body(request: GenerationRequest, rid: str, label: str) -> dict[str, object]:
    """What `/generate` takes. It ignores fields that it does not know, and would take defaults from the model's
    folder: so all that shapes the distribution is there."""
    so_far, sampling = request.so_far, request.sampling
    known = [] if so_far is None else so_far.token_ids.tolist()
    return {
        "rid": rid,
        "input_ids": request.prompt_ids.tolist() + known,
        "stream": True,
        "return_logprob": True,
        "logprob_start_len": 0 if request.prompt_logprobs else -1,  # -1: of what is sampled
        "top_logprobs_num": request.top_logprobs,
        "extra_key": label,
        "sampling_params": {
            "max_new_tokens": _still_to_come(request),
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "stop_token_ids": list(request.stop_token_ids),
            "ignore_eos": not request.stop_token_ids,
            "sampling_seed": request.seed,
            **({} if request.grammar is None else _constraint(request.grammar)),
        },
    }


def _constraint(grammar: Grammar) -> dict[str, str]:
    """The grammar as SGLang names it. Its `ebnf` is Lark, too, for the library that it is started with."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return {"json_schema": with_blanks(grammar.text)}
        case GrammarKind.REGEX:
            return {"regex": grammar.text}
        case GrammarKind.LARK:
            return {"ebnf": grammar.text}


def _still_to_come(request: GenerationRequest) -> int:
    """Tokens that may be sampled, beside those that it comes with."""
    return request.sampling.max_new_tokens - (0 if request.so_far is None else request.so_far.end)


def _unsupported(sampling: SamplingParams) -> str:
    for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(sampling, name) != off:
            given = getattr(sampling, name)
            return f"sglang gives log-probs from before truncation, and {name} is {given}: set {off}, which is off"
    return ""


def _check_files(folder: Path) -> None:
    """Raise ComponentError for a folder whose files are not whole, before anything has happened."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ComponentError(f"no .safetensors file in {folder}: there are no weights to update to")
    for file in files:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise ComponentError(f"{file} cannot be read: {error}") from error


def _accepted(answer: Answer) -> Answer:
    if not answer.ok:
        raise answer.refusal()
    return answer


def _read(answer: Answer, reader: Callable[[bytes], _T]) -> _T:
    """What a good answer says. Raises ComponentError for a refusal and for an answer that makes no sense."""
    try:
        return reader(_accepted(answer).content)
    except DataError as error:
        raise ComponentError(f"{answer.route} answers what makes no sense: {error}") from error
