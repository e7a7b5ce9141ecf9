"""The client by which verifiers trains, of its package `renderers`: it renders, sends ids, and reads ids back."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from support.gateway.agent_sessions import gateway_of

PACKAGE = pytest.mark.skipif(find_spec("renderers") is None, reason="make test-environments")
MOST = 8


@PACKAGE
async def test_turns_of_the_train_client_are_a_session_of_the_ids_that_it_has(tmp_path: Path) -> None:
    import openai
    from renderers import DefaultRenderer, DefaultRendererConfig
    from renderers.base import ParsedResponse
    from renderers.client import generate
    from transformers import AutoTokenizer

    class Renderer(DefaultRenderer):
        """Its own looks for words that a vocabulary of digits has no tokens for."""

        def parse_response(self, token_ids: list[int], **_: object) -> ParsedResponse:
            return ParsedResponse(content=tokenizer.decode(token_ids))

    async with (
        gateway_of(tmp_path, most=MOST) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token(), max_retries=0) as client,
    ):
        tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / "model"))
        renderer = Renderer(tokenizer, DefaultRendererConfig())
        asked = {"client": client, "renderer": renderer, "model": "run", "extra_headers": {"X-Session-ID": "agent"}}
        messages = [{"role": "user", "content": "1"}]
        first = await generate(messages=messages, sampling_params={"max_tokens": MOST}, **asked)
        assert len(first["completion_ids"]) == len(first["completion_logprobs"]) > 0
        assert first["finish_reason"] in ("stop", "length")
        turn = [*first["prompt_ids"], *first["completion_ids"], *tokenizer.encode("1", add_special_tokens=False)]
        second = await generate(messages=messages, prompt_ids=turn, sampling_params={"max_tokens": MOST}, **asked)
        assert second["prompt_ids"] == turn
        status, told = await gateway.ask("/api/sessions/agent/reward", {"reward": 1.0})
    assert (status, told["branches"], told["turns"]) == (200, 1, 2)
