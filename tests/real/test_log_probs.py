"""Log-probs of real servers are those of transformers, before and after an update."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engines.real_engines import BFLOAT16, CLOSE, SEPARATE, TIED, Served, expected, requests_of
from support.engines.real_models import furthest

from streamrl.types import TopLogprobs

BF16_MEAN, BF16_MAX = 0.02, 0.2
"""Differences in bfloat16, of distributions as sharp as these: two layers, each rounded to 8 bits."""


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("kind", [*TIED, *SEPARATE], ids=str)
def test_log_probs_are_those_of_transformers_before_and_after_an_update(temperature: float, server: Served) -> None:
    requests = requests_of(8, temperature=temperature)
    server.assert_parity(requests)
    before = server.model
    server.load()
    server.assert_parity(requests)
    result = server.answers(requests[:1])[0]
    warmer = expected(server.model, requests[0], result.token_ids, temperature + 0.3)
    assert furthest(result.logprobs, warmer) > 100 * CLOSE, "the check would pass any temperature"
    ids = np.arange(3, 13, dtype=np.int32)
    apart = expected(before, requests[0], ids) - expected(server.model, requests[0], ids)
    assert np.abs(apart).max() > 0.1, "two versions that cannot be told apart prove nothing"


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("kind", TIED, ids=str)
def test_the_likeliest_tokens_and_the_prompts_log_probs_are_those_of_transformers(
    temperature: float, server: Served
) -> None:
    plain = requests_of(8, temperature=temperature)
    server.load()
    asked = [replace(one, top_logprobs=place, prompt_logprobs=place % 2 == 0) for place, one in enumerate(plain)]
    results = {result.request_id: result for result in server.answers(asked)}
    for one in asked:
        result = results[one.request_id]
        assert result.error == ""
        ids = torch.from_numpy(np.concatenate((one.prompt_ids, result.token_ids)).astype(np.int64))
        with torch.inference_mode():
            logits = server.model(ids[None]).logits[0]
        last = len(one.prompt_ids) - 1
        assert_likeliest(result.top_logprobs, logits[last:-1] / (temperature or 1.0), one.top_logprobs)
        assert (result.prompt is not None) == one.prompt_logprobs
        if result.prompt is not None:
            own = logits[:last].log_softmax(-1).gather(1, ids[1 : last + 1, None])[:, 0].numpy()
            assert furthest(result.prompt.logprobs, own) <= CLOSE
            assert_likeliest(result.prompt.top_logprobs, logits[:last], one.top_logprobs)


def assert_likeliest(told: TopLogprobs | None, logits: torch.Tensor, most: int) -> None:
    """They are the greatest `most` of each row, the greatest first."""
    if not most:
        assert told is None
        return
    logprobs = logits.log_softmax(-1)
    assert told.logprobs.shape == (len(logits), most)
    assert furthest(told.logprobs, logprobs.topk(most).values.numpy()) <= CLOSE
    there = logprobs.gather(1, torch.from_numpy(told.token_ids.astype(np.int64))).numpy()
    assert furthest(told.logprobs, there) <= CLOSE


@pytest.mark.parametrize("kind", BFLOAT16, ids=str)
def test_log_probs_in_bfloat16_are_as_far_as_rounding_before_and_after_an_update(server: Served) -> None:
    requests = requests_of(16)
    for _ in range(2):
        other = server.model
        server.load()
        differences, others = [], []
        for result in server.answers(requests):
            request = requests[int(result.request_id.split("/")[1])]
            differences.append(result.logprobs - expected(server.model, request, result.token_ids))
            others.append(result.logprobs - expected(other, request, result.token_ids))
        found = np.abs(np.concatenate(differences))
        print(f"{server.name}, bfloat16: mean {found.mean():.4f}, maximum {found.max():.4f}")
        assert found.mean() <= BF16_MEAN
        assert found.max() <= BF16_MAX
        assert np.abs(np.concatenate(others)).mean() > 10 * BF16_MEAN, "the bound would pass any weights"
