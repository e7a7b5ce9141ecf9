"""Real servers name the experts that their tokens went to: those of the model's own routers, also of a prompt that is
cached, under another version, and behind tokens that were sampled elsewhere."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.engines.real_engines import ENGINES, Kind, Served, requests_of, served
from support.engines.routed_model import CHOSEN, LAYERS, own_routes, write_routed_model

from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    PartialTokens,
    RouteArray,
    UpdateMode,
)


@pytest.fixture(scope="module", params=ENGINES)
def routed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    kind = Kind(request.param, tied=False)
    if kind.name == "vllm":
        pytest.skip("vLLM names experts on a GPU alone: its second model runner needs Triton")
    if not kind.python.exists():
        pytest.skip(f"needs .venvs/{kind.name}: make engines")
    with served(kind, tmp_path_factory.mktemp(kind.name), write_routed_model, routes=True) as one:
        yield one


def assert_routes(result: GenerationResult, request: GenerationRequest, served: Served) -> None:
    """Of all tokens but the last one, where the model of the version that serves would send them."""
    assert (result.finish_reason, result.error) == (FinishReason.LENGTH, "")
    ids = np.concatenate((request.prompt_ids, result.token_ids))
    found = in_order(result.routes)
    assert found.shape == (len(ids), LAYERS, CHOSEN)
    assert np.array_equal(found[:-1], own_routes(served.model, ids)[:-1])
    assert (found[-1] == -1).all()


def in_order(routes: RouteArray | None) -> RouteArray:
    assert routes is not None
    return np.sort(routes, axis=-1)


def test_tokens_went_where_the_models_own_routers_send_them(routed: Served) -> None:
    requests = requests_of(6, new=20)
    by_id = {one.request_id: one for one in requests}
    for _ in range(2):  # the second time prompts are in the cache
        for result in routed.answers(requests):
            assert_routes(result, by_id[result.request_id], routed)


def test_a_long_prompt_that_others_have_too_is_told_whole(routed: Served) -> None:
    (long,) = requests_of(1, new=8, length=300)
    for number in range(3):
        one = replace(long, request_id=f"long/{number}", seed=number)
        (result,) = routed.answers([one])
        assert_routes(result, one, routed)


@pytest.mark.parametrize("mode", [UpdateMode.DRAIN, UpdateMode.RECOMPUTE])
def test_a_version_has_routers_of_its_own(routed: Served, mode: UpdateMode) -> None:
    (one,) = requests_of(1, new=12, length=40)
    routed.answers([one])
    routed.load_file(mode)
    (result,) = routed.answers([replace(one, request_id="again")])
    assert_routes(result, one, routed)


def test_what_was_sampled_elsewhere_went_where_it_was_recorded(routed: Served) -> None:
    (one,) = requests_of(1, new=10)
    (whole,) = routed.answers([one])
    known = whole.routes[len(one.prompt_ids) - 1 : len(one.prompt_ids) + 3]
    for routes in (known, None):
        so_far = PartialTokens(
            one.request_id, 0, whole.token_ids[:4], whole.logprobs[:4], whole.version_spans, routes=routes
        )
        (result,) = routed.answers([replace(one, so_far=so_far)])
        start = len(one.prompt_ids) - 1
        own = own_routes(routed.model, np.concatenate((one.prompt_ids, result.token_ids)))
        found = in_order(result.routes)
        assert np.array_equal(found[:start], own[:start])
        assert np.array_equal(found[start + 4 : -1], own[start + 4 : -1])
        assert np.array_equal(
            found[start : start + 4], in_order(known) if routes is not None else np.full_like(found[:4], -1)
        )


@pytest.mark.parametrize("mode", list(UpdateMode)[:2])
def test_routes_of_a_completion_that_went_on_under_another_version_are_of_its_tokens_or_of_none(
    routed: Served, mode: UpdateMode
) -> None:
    requests = requests_of(2, new=3000)
    routed.start(requests)
    routed.load_file(mode)
    routed.go_on()
    for result in routed.abort_all():
        assert result.routes is not None
        prompt = len(next(one for one in requests if one.request_id == result.request_id).prompt_ids)
        assert len(result.routes) == prompt + len(result.token_ids)
