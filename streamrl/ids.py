"""Ids of prompts, groups and rollouts, and the seeds that follow from them.

Guaranteed: pure functions of what they are given, so that every process of a run makes the same ones. A seed follows
from an id: a second attempt draws the same tokens.
"""

import xxhash


def prompt_digest(content: str, index: int) -> str:
    """The id of a prompt, stable across runs of the same data: 16 hex digits of its content and index.

    Example:
        >>> prompt_digest("1+1=", 0) == prompt_digest("1+1=", 0)
        True
        >>> prompt_digest("1+1=", 0) == prompt_digest("1+1=", 1)
        False
    """
    return xxhash.xxh3_64_hexdigest(f"{index}\x00{content}".encode())


def group_id(prompt_id: str, data_pass: int) -> str:
    return f"{prompt_id}.{data_pass}"


def rollout_id(group: str, sample_index: int) -> str:
    return f"{group}/{sample_index}"


def rollout_seed(run_seed: int, rollout: str) -> int:
    """The sampling seed of a rollout, in [0, 2**63). It depends on the run's seed and the rollout's id only,
    so a second attempt draws the same tokens."""
    return xxhash.xxh3_64_intdigest(rollout.encode(), seed=run_seed) >> 1


def turn_seed(run_seed: int, rollout: str, turn: int) -> int:
    """The seed of a rollout's turn, counted from 0, as a client of the gateway would give it: with the same prompt and
    weights `seed` = this samples the same tokens there."""
    return rollout_seed(run_seed, f"{rollout}/turn/{turn}")


def completion_seed(seed: int, index: int) -> int:
    """What draws completion `index` of a client's request with `seed`."""
    # An equal prompt and seed draw the same again, whatever id the request has.
    return rollout_seed(seed % 2**64, f"guest/{index}")
