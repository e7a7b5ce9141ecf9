"""Routes of several turns: those of the tokens as they were first read, in each branch."""

import numpy as np
import pytest
import torch
from support.kernels import NEEDS_KERNELS
from support.learner.routed import CHOSEN, LAYERS, VOCAB, routed_model

from streamrl.buffers.rows.trajectory_rows import branch_columns
from streamrl.conversations.branches import Branch, Turn
from streamrl.conversations.conversation import Call, Conversation
from streamrl.engines.torch import TorchEngine
from streamrl.errors import DataError
from streamrl.types import GenerationRequest, GenerationResult, RouteArray, SamplingParams, Version


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def routes(*experts: int) -> RouteArray:
    """One layer, one expert of a token."""
    return np.array(experts, np.int16).reshape(-1, 1, 1)


def test_a_token_has_the_routes_of_the_turn_that_read_it_first() -> None:
    conversation = Conversation()
    conversation.add(Call([1, 2], [3], [-0.1], [(0, 0, 4)], "stop", routes=routes(5, 6, -1)))
    conversation.add(Call([1, 2, 3, 9], [4], [-0.2], [(0, 0, 4)], "stop", routes=routes(0, 0, 7, 8, -1)))
    conversation.add(Call([1, 2, 8], [4], [-0.2], [(0, 0, 4)], "stop"))
    first, fork = branch_columns(conversation.branches()).routes
    assert first is not None
    assert first.ravel().tolist() == [5, 6, 7, 8, -1]
    assert fork is None


def test_without_routes_there_is_no_column_of_them() -> None:
    assert branch_columns([Branch([Turn([1], [2], [-0.1], [(0, 0, 0)])], "stop")]).routes == ()


def test_routes_that_are_not_of_the_turns_tokens_are_refused() -> None:
    turn = Turn([1, 2], [3], [-0.1], [(0, 0, 0)], routes(1, 2))
    with pytest.raises(DataError, match="ends with token 3 of its branch has routes of 2 tokens"):
        branch_columns([Branch([turn], "stop")])


def played(engine: TorchEngine, turns: int) -> Conversation:
    """Each turn's prompt is all that was said, and two ids of an environment."""
    conversation, said = Conversation(), [3, 1, 4, 1, 5]
    opening = len(said)
    for turn in range(turns):
        ids = np.array(said, np.int32)
        sampling = SamplingParams(max_new_tokens=4)
        asked = GenerationRequest(str(turn), ids, turn, sampling, (), conversation="c", opening=turn and opening)
        result: GenerationResult = engine.generate([asked])[0]
        spans = [(span.start, *span.version) for span in result.version_spans]
        answer = result.token_ids.tolist()
        conversation.add(Call(said, answer, result.logprobs.tolist(), spans, "stop", routes=result.routes))
        said = [*said, *answer, (7 * turn) % VOCAB, 2]
    return conversation


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=NEEDS_KERNELS), False], ids=["kept", "read again"])
@torch.no_grad()
def test_an_episode_has_the_experts_of_all_its_tokens_whether_turns_keep_what_was_read_or_not(compiled: bool) -> None:
    model = routed_model()
    size = {"slots": 4, "max_length": 64, "kv_bytes": 2**24}
    engine = TorchEngine(model, Version(0, 0), **size, compiled=compiled, record_routes=True)
    columns = branch_columns(played(engine, 3).branches())
    assert (engine.stats().kept_tokens > 0) is compiled
    (found,) = columns.routes
    assert found is not None
    ids = torch.from_numpy(columns.token_ids.astype(np.int64))[None]
    logits = model(ids, output_router_logits=True).router_logits
    expected = np.stack([one.topk(CHOSEN).indices.sort(-1).values.numpy() for one in logits], axis=1)
    known = (found >= 0).all(-1)
    assert np.array_equal(np.sort(found, -1)[known], expected[known])
    # But for the last token, all layers below the last have each token; that has those that sampled.
    assert known[:-1, :-1].all()
    assert known.shape == (len(found), LAYERS)
    before_sampled = np.flatnonzero(columns.token_origin == 1) - 1
    assert known[before_sampled].all()
