"""Special tokens in the text of an answer, for a client that wants them: the text is that of the ids, and comes back as
them."""

from pathlib import Path

from support.engines.calling_model import MISTRAL_MARKS, write_mistral_tokenizer
from support.gateway.agent_sessions import CALLS, gateway_of
from support.gateway.local_gateway import LocalGateway

from streamrl.config.schema.run import GatewayConfig, ModelConfig
from streamrl.gateway.openai.bodies import CompletionRequest
from streamrl.gateway.openai.requests import Limits, Reader
from streamrl.gateway.sessions.session_body import HEADER
from streamrl.models.load import prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer

USER = {"role": "user", "content": "1"}
PLAIN = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, tool_call_parser="none")


async def text_of(gateway: LocalGateway, ids: list[int], finish_reason: str) -> str:
    """Without the token that ended them."""
    tokens = ids[:-1] if finish_reason == "stop" else ids
    return (await gateway.ask("/detokenize", {"tokens": tokens}))[1]["prompt"]


async def test_a_text_with_special_tokens_is_that_of_the_ids_and_a_session_goes_on_behind_it(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **{**CALLS, "finish": write_mistral_tokenizer}, settings=PLAIN) as gateway:
        for number in range(200):
            headers = {"authorization": f"Bearer {gateway.token()}", HEADER: f"agent-{number}"}
            asked = {"model": "run", "max_tokens": 12, "skip_special_tokens": False}
            _, first = await gateway.ask("/v1/chat/completions", {**asked, "messages": [USER]}, headers=headers)
            choice = first["choices"][0]
            text, ids = choice["message"]["content"], choice["streamrl"]["token_ids"]
            assert text == await text_of(gateway, ids, choice["finish_reason"])
            if choice["finish_reason"] != "stop" or not any(mark in text for mark in MISTRAL_MARKS):
                continue
            turns = [USER, {"role": "assistant", "content": text}, USER]
            _, second = await gateway.ask("/v1/chat/completions", {**asked, "messages": turns}, headers=headers)
            whole = [*first["streamrl"]["prompt_token_ids"][0], *ids]
            assert second["streamrl"]["prompt_token_ids"][0][: len(whole)] == whole
            _, counts = await gateway.ask(f"/api/sessions/agent-{number}/reward", {"reward": 1.0})
            assert (counts["branches"], counts["turns"]) == (1, 2)
            return
    raise AssertionError("no answer had a special token")


async def test_a_completion_shows_them_too(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, **{**CALLS, "finish": write_mistral_tokenizer}, settings=PLAIN) as gateway:
        body = {"prompt": "user=1", "max_tokens": 12, "n": 8, "seed": 0}
        _, shown = await gateway.complete(**body, skip_special_tokens=False)
        _, plain = await gateway.complete(**body)
        for one, other in zip(shown["choices"], plain["choices"], strict=True):
            assert one["streamrl"]["token_ids"] == other["streamrl"]["token_ids"]
            assert one["text"] == await text_of(gateway, one["streamrl"]["token_ids"], one["finish_reason"])
            without = other["text"]
            assert not any(mark in without for mark in MISTRAL_MARKS)
        assert any(one["text"] != other["text"] for one, other in zip(shown["choices"], plain["choices"], strict=True))


def test_what_ends_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path)
    write_mistral_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    reader = Reader(Limits("run", 2048, 8, 256, 20), tokenizer, None)
    ends, *others = tokenizer.special_token_ids - set(tokenizer.eos_token_ids)
    body = CompletionRequest(model="run", prompt="1", max_tokens=8, skip_special_tokens=False, stop_token_ids=[ends])
    assert reader.completion(body, 0).written == frozenset(others)
    assert others
