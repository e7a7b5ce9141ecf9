"""A trajectory as a client gives it, and what of it can be trained on. Pure.

Guaranteed of what `check_branch` lets pass: it is a row that the learner can train on as it is. Nothing here knows
where it was made, or what its group is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from streamrl.conversations.branches import Branch, Turn
from streamrl.gateway.refusal import invalid
from streamrl.types import Version

LARGEST = 3.4e38
"""Of a log-prob, up or down: rows keep it in 32 bits."""
MOST_LOGPROB = 1e-3
"""Of a log-prob, which is 0 at most but for rounding."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """key: its name for ever. digest: of everything that the client said of it, 64 bits. group: the name that it shares
    with those it is compared with. components: by name, those that the run wants."""

    key: str
    digest: int
    group: str
    reward: float
    components: dict[str, float]
    branches: Sequence[Branch]

    @property
    def versions(self) -> list[Version]:
        """Those that sampled any of its tokens, ascending."""
        spans = (span for branch in self.branches for turn in branch.turns for span in turn.spans)
        return sorted({Version(*span[1:]) for span in spans})


def check_branch(branch: Branch, *, context: int, vocab_size: int) -> None:
    """Raises Refusal for what cannot be trained on. context: tokens of a row. vocab_size: ids are below it."""
    if not branch.turns:
        raise invalid("empty_trajectory", "a trajectory has one turn at least", "turns")
    if not branch.turns[0].prompt_ids:
        raise invalid("empty_prompt", "the first turn has no prompt", "turns.0.prompt_token_ids")
    for place, turn in enumerate(branch.turns):
        _check_turn(turn, f"turns.{place}", vocab_size)
    if branch.num_tokens > context:
        what = f"{branch.num_tokens} tokens; the context has {context}"
        raise invalid("context_length_exceeded", what, "turns")
    versions = [span[1:] for turn in branch.turns for span in turn.spans]
    for before, after in pairwise(versions):
        if after < before:
            what = (
                f"version {Version(*after)} sampled behind version {Version(*before)}; within a row it never goes back"
            )
            raise invalid("invalid_version_spans", what, "turns")


def _check_turn(turn: Turn, where: str, vocab_size: int) -> None:
    count = len(turn.token_ids)
    if not count:
        raise invalid("empty_trajectory", "a turn without a sampled token", f"{where}.token_ids")
    if len(turn.logprobs) != count:
        what = f"{len(turn.logprobs)} log-probs for {count} sampled tokens; each has one"
        raise invalid("lengths_differ", what, f"{where}.logprobs")
    for name, ids in (("prompt_token_ids", turn.prompt_ids), ("token_ids", turn.token_ids)):
        if ids and max(ids) >= vocab_size:
            what = f"{max(ids)} is no id of a token; they are below {vocab_size}"
            raise invalid("token_out_of_range", what, f"{where}.{name}")
    for place, value in enumerate(turn.logprobs):
        if not math.isfinite(value) or abs(value) > LARGEST:
            raise invalid("non_finite", f"log-prob {place} is {value}", f"{where}.logprobs")
        if value > MOST_LOGPROB:
            what = f"log-prob {place} is {value}; that of a token is 0 or less"
            raise invalid("invalid_value", what, f"{where}.logprobs")
    starts = [span[0] for span in turn.spans]
    if not starts or starts[0] != 0 or starts[-1] >= count or any(b <= a for a, b in pairwise(starts)):
        what = f"spans start at {starts[:8]}; the first one at 0, later ones ever later, all below {count}"
        raise invalid("invalid_version_spans", what, f"{where}.version_spans")
