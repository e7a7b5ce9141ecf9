"""Log-probs of real servers are those of transformers, before and after an update."""

import numpy as np
import pytest
from support.engines.real_engines import BFLOAT16, CLOSE, SEPARATE, TIED, Served, expected, requests_of
from support.engines.real_models import furthest

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
