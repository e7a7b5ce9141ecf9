"""vLLM's routes, by name and in the right order. For vLLM 0.32; it keeps no books.

Traps that it goes around:
* Weights that change while a step runs end the engine, or leave a token under the wrong label: it pauses first.
* A prefix cache knows nothing of weights: every request's entries are salted with the version under which it was sent,
  so no later request reuses keys and values of older weights. `recompute` and `drain` also empty the cache; with `keep`
  a request that the server may not have begun is taken back and sent again, with the new salt.
* An abort of a request that the server has not begun is lost: such a request is ended by closing its connection.
* A pause outlives whoever asked for it: whatever fails between, the server is resumed, unless nobody can say which
  weights it has.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamrl.engines.server.contract import Piece
from streamrl.engines.server.http import Answer, Http
from streamrl.engines.server.sendings import Sendings, Sent
from streamrl.engines.server.vllm import answers as vllm_answers
from streamrl.errors import ComponentError, ProcessDiedError
from streamrl.models.grammars import with_blanks
from streamrl.types import GenerationRequest, Grammar, GrammarKind, ServerLoad, UpdateMode, Version

_GENERATE = "/inference/v1/generate"
_PREFIX = "generate-tokens-"
"""What that route puts before a request's id; the route that aborts knows it by the whole."""


class VllmContract:
    """`streamrl.engines.server.contract.ServerContract` for a server that `vllm_command` describes."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._secret = secrets.token_hex(8)
        self._sendings = Sendings(self._ask)
        self._label = ""

    async def ready(self) -> bool:
        try:
            health, paused = await self._http.get("/health"), await self._http.get("/is_paused")
        except ProcessDiedError:
            return False
        return health.ok and paused.ok and paused.json().get("is_paused") is False

    async def identify(self) -> str:
        version = str(_checked(await self._http.get("/version")).json().get("version"))
        vllm_answers.check_version(version)
        return version

    def generate(self, request: GenerationRequest) -> AsyncIterator[Piece]:
        return self._sendings.pieces(request)

    async def abort(self, request_ids: Sequence[str]) -> None:
        if names := [_PREFIX + name for name in self._sendings.drop(request_ids)]:  # none would mean all
            _checked(await self._http.post("/abort_requests", {"request_ids": names}))

    async def update(self, weights: Path, version: Version, mode: UpdateMode) -> None:
        """Pause, load, label, resume. All of it while nothing is sampled: so a label never lies."""
        self._sendings.close_gate()
        if mode is UpdateMode.KEEP:
            await self._sendings.take_back_unacknowledged()
        clear = mode is not UpdateMode.KEEP
        try:
            _checked(await self._http.post("/pause", params={"mode": "keep", "clear_cache": str(clear).lower()}))
            faults = await self._rpc("streamrl_load_weights", str(weights), str(version))
            if any(faults):
                raise ComponentError(f"the weights are not the model's: {next(filter(None, faults))}")
            _checked(await self._http.post("/update_weight_version", {"new_version": str(version)}))
        except ComponentError:
            # Weights that nobody can name sample nothing any more.
            if await self.serves() is not None:
                await self._resume()
            raise
        self._label = str(version)
        await self._resume()

    async def serves(self) -> Version | None:
        """The label, if all workers hold the weights that it names: each says what it loaded last, whole."""
        held = await self._rpc("streamrl_holds")
        label = _checked(await self._http.get("/weight_info")).json().get("weight_version")
        return vllm_answers.read_version(label) if all(one == label for one in held) else None

    async def load(self) -> ServerLoad:
        return vllm_answers.read_load(_checked(await self._http.get("/metrics")).content.decode())

    async def close(self) -> None:
        await self._http.close()

    async def _resume(self) -> None:
        _checked(await self._http.post("/resume"))
        self._sendings.open_gate()

    async def _rpc(self, method: str, *args: str) -> list[Any]:
        """Call a method of the worker extension in every worker; their answers."""
        answer = _checked(await self._http.post("/collective_rpc", {"method": method, "args": list(args)}))
        results = answer.json().get("results")
        if not isinstance(results, list) or not results:
            raise ComponentError(f"{answer.route} ({method}) answers without results: {answer.error_text()}")
        return results

    async def _ask(self, sent: Sent) -> AsyncIterator[Piece]:
        prompt = None
        if sent.request.prompt_logprobs:
            answer = await self._http.post(_GENERATE, self._prompt_body(sent.request, sent.rid))
            if not answer.ok and answer.status < 500:
                yield Piece.failed(str(answer.refusal()))
                return
            request = sent.request
            prompt = vllm_answers.read_prompt(_checked(answer).content, request.prompt_ids, request.top_logprobs)
        async with self._http.stream(_GENERATE, self._body(sent.request, sent.rid)) as response:
            if not response.ok:
                answer = await response.whole()
                if answer.status >= 500:
                    raise answer.refusal()
                yield Piece.failed(str(answer.refusal()))
                return
            async for data in response.events():
                # To the end of the stream: what came behind the last piece would be a fault.
                if (piece := vllm_answers.read_chunk(data, sent.request.top_logprobs)) is not None:
                    yield piece if prompt is None else replace(piece, prompt=prompt)
                    prompt = None

    def _body(self, request: GenerationRequest, rid: str) -> dict[str, Any]:
        sampling, so_far = request.sampling, request.so_far
        before = [] if so_far is None else so_far.token_ids.tolist()
        return {
            "request_id": rid,
            "token_ids": request.prompt_ids.tolist() + before,
            "stream": True,
            "cache_salt": f"{self._secret} {self._label}",
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "max_tokens": sampling.max_new_tokens - len(before),
                "seed": request.seed,
                "logprobs": vllm_answers.asked_top(request.top_logprobs),  # 0: of the sampled token alone
                "stop_token_ids": list(request.stop_token_ids),
                "ignore_eos": True,  # only the request says what ends it
                "detokenize": False,
                **({} if request.grammar is None else {"structured_outputs": _structured_outputs(request.grammar)}),
            },
        }

    def _prompt_body(self, request: GenerationRequest, rid: str) -> dict[str, Any]:
        """A request beside, which no stream answers: of the prompt alone, and one token, which is left."""
        asked = {"max_tokens": 1, "prompt_logprobs": request.top_logprobs, "temperature": 0.0, "detokenize": False}
        return {
            "request_id": f"{rid}/prompt",
            "token_ids": request.prompt_ids.tolist(),
            "cache_salt": f"{self._secret} {self._label}",
            "sampling_params": asked,
        }


def _structured_outputs(grammar: Grammar) -> dict[str, str]:
    """The grammar as vLLM names it. Its `grammar` is Lark for the library that it is started with."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return {"json": with_blanks(grammar.text)}
        case GrammarKind.REGEX:
            return {"regex": grammar.text}
        case GrammarKind.LARK:
            return {"grammar": grammar.text}


def _checked(answer: Answer) -> Answer:
    if not answer.ok:
        raise answer.refusal()
    return answer
