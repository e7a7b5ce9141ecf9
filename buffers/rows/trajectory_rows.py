"""The token columns of trajectories of several turns, a row for each branch."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from streamrl.buffers.rows.arrow import TokenColumns
from streamrl.conversations.branches import Branch, Turn
from streamrl.errors import DataError
from streamrl.types import IntArray, LongArray, RouteArray, TokenOrigin


def branch_columns(branches: Sequence[Branch]) -> TokenColumns:
    """The columns of branches: of each the first turn's prompt, then in turn sampled tokens and the environment's."""
    turns = list(chain.from_iterable(branch.turns for branch in branches))
    pieces = [(len(turn.prompt_ids), len(turn.token_ids)) for turn in turns]
    lengths = np.array([branch.num_tokens for branch in branches], np.int64)
    origin = np.concatenate([_origins(branch.turns) for branch in branches])
    logprobs = np.zeros(len(origin), np.float32)
    sampled = np.fromiter(chain.from_iterable(turn.logprobs for turn in turns), np.float32)
    logprobs[origin == TokenOrigin.SAMPLED] = sampled
    ids = chain.from_iterable(chain(turn.prompt_ids, turn.token_ids) for turn in turns)
    spans = [_spans(branch.turns) for branch in branches]
    routes = [_routes(branch) for branch in branches]
    columns = np.array(list(chain.from_iterable(spans)), np.int64).reshape(-1, 3)
    return TokenColumns(
        offsets=_offsets(lengths),
        token_ids=np.fromiter(ids, np.int32, sum(map(sum, pieces))),
        token_origin=origin,
        rollout_logprobs=logprobs,
        span_offsets=_offsets(np.array([len(one) for one in spans], np.int64)),
        span_start=_int32(columns[:, 0]),
        span_incarnation=_int32(columns[:, 1]),
        span_step=columns[:, 2].copy(),
        routes=routes if any(one is not None for one in routes) else (),
    )


def _routes(branch: Branch) -> RouteArray | None:
    """int16 [tokens, layers, K] of a branch: of each token those of the first turn that recorded some. Raises DataError
    where a turn's are not of the branch's tokens up to its end."""
    found: RouteArray | None = None
    end = 0
    for turn in branch.turns:
        end += len(turn.prompt_ids) + len(turn.token_ids)
        if turn.routes is None:
            continue
        if len(turn.routes) != end:
            raise DataError(f"a turn that ends with token {end} of its branch has routes of {len(turn.routes)} tokens")
        if found is None:
            found = np.full((branch.num_tokens, *turn.routes.shape[1:]), -1, np.int16)
        found[:end] = np.where(found[:end] < 0, turn.routes, found[:end])
    return found


def _origins(turns: Sequence[Turn]) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    kinds, counts = [], []
    for place, turn in enumerate(turns):
        kinds += [TokenOrigin.ENVIRONMENT if place else TokenOrigin.PROMPT, TokenOrigin.SAMPLED]
        counts += [len(turn.prompt_ids), len(turn.token_ids)]
    return np.repeat(np.array(kinds, np.uint8), counts)


def _spans(turns: Sequence[Turn]) -> list[tuple[int, int, int]]:
    """(start, incarnation, step), `start` counted in the row; one for each stretch of a version."""
    spans: list[tuple[int, int, int]] = []
    before = 0
    for turn in turns:
        before += len(turn.prompt_ids)
        for start, *version in turn.spans:
            if not spans or spans[-1][1:] != tuple(version):
                spans.append((before + start, version[0], version[1]))
        before += len(turn.token_ids)
    return spans


def _offsets(lengths: LongArray) -> LongArray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


def _int32(values: LongArray) -> IntArray:
    return values.astype(np.int32)
