"""Preference pairs from a file: one prompt, the answer that was preferred, and the one that was not.

A line of the file is a JSON object with the texts "prompt", "chosen" and "rejected", and a "margin" where it is known
by how much the chosen one is better; further keys have no part. Guarantees: a line that is wrong is refused with its
number, together with all others that are; which pairs are held out is fixed by a digest of their prompt, so that two
pairs of one prompt are on the same side.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from streamrl.errors import ConfigError
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import IntArray, RolloutRows, TokenOrigin

MOST_TOLD = 5
"""Lines that are named in one message."""


class PreferencePair(msgspec.Struct, frozen=True, kw_only=True):
    """One line. margin: 0 where nothing is said."""

    prompt: str
    chosen: str
    rejected: str
    margin: float = 0.0


class EncodedPair(NamedTuple):
    """prompt, chosen, rejected: int32 [n], the answers with an end token behind them. line: in the file, from 1."""

    line: int
    prompt: IntArray
    chosen: IntArray
    rejected: IntArray
    margin: float

    @property
    def num_tokens(self) -> int:
        """Of the longer row."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


def read_pairs(path: Path) -> dict[int, PreferencePair]:
    """The pairs of a file by the number of their line, from 1; empty lines are passed over. Raises ConfigError."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the preferences in {path}: {error.strerror}") from error
    pairs: dict[int, PreferencePair] = {}
    wrong: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            pairs[number] = _pair(line)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            wrong.append(f"line {number}: {error}")
    refuse(
        path, wrong, 'a line is {"prompt": "...", "chosen": "...", "rejected": "..."}, and a "margin" if it is known'
    )
    return pairs


def refuse(path: Path, wrong: Sequence[str], way_out: str) -> None:
    """Raise ConfigError for lines that are wrong, if there are any."""
    if wrong:
        more = f"; and {len(wrong) - MOST_TOLD} more" if len(wrong) > MOST_TOLD else ""
        raise ConfigError(f"{path}: {'; '.join(wrong[:MOST_TOLD])}{more}. {way_out[0].upper()}{way_out[1:]}")


def _pair(line: bytes) -> PreferencePair:
    pair = msgspec.json.decode(line, type=PreferencePair)
    if pair.chosen == pair.rejected:
        raise ValueError("chosen and rejected are equal, which says nothing")
    if not math.isfinite(pair.margin) or pair.margin < 0.0:
        raise ValueError(f"the margin is {pair.margin:g}, not a finite number of 0 or more")
    return pair


def encode_pairs(pairs: dict[int, PreferencePair], tokenizer: TextTokenizer, path: Path) -> list[EncodedPair]:
    """The token ids of the pairs, in the order of their lines: a prompt as one of a task is encoded, an answer as it
    would have been sampled, end token included. Raises ConfigError naming the lines that the vocabulary cannot
    express; path: of the file, for that."""
    encoded: list[EncodedPair] = []
    wrong: list[str] = []
    for line, pair in pairs.items():
        try:
            texts = (_ended(pair.chosen, tokenizer), _ended(pair.rejected, tokenizer))
            encoded.append(EncodedPair(line, tokenizer.encode(pair.prompt), *texts, pair.margin))
        except ConfigError as error:
            wrong.append(f"line {line}: {error}")
    refuse(path, wrong, "take a model whose tokenizer knows these texts")
    return encoded


def _ended(text: str, tokenizer: TextTokenizer) -> IntArray:
    answer = tokenizer.encode(text, add_special_tokens=False)
    return np.append(answer, tokenizer.eos_token_ids[0]).astype(np.int32)


def split_pairs(pairs: Sequence[EncodedPair], held_out: float) -> tuple[list[EncodedPair], list[EncodedPair]]:
    """(trained on, held out), in digest order: whole prompts are held out until the share `held_out` of the pairs is
    reached. Raises ConfigError when either side would be empty."""
    by_digest = sorted(pairs, key=lambda pair: (_digest(pair), pair.line))
    wanted, count = max(1, round(held_out * len(pairs))), 0
    while count < len(by_digest) and (count < wanted or _digest(by_digest[count]) == _digest(by_digest[count - 1])):
        count += 1
    if not 0 < count < len(by_digest):
        prompts = len({_digest(pair) for pair in pairs})
        raise ConfigError(
            f"{len(pairs)} pairs with {prompts} different prompts leave nothing to train on, or to hold out, when the "
            f"share {held_out:g} of them is held out, prompts whole; give more pairs, or hold out less"
        )
    return by_digest[count:], by_digest[:count]


def _digest(pair: EncodedPair) -> int:
    return xxhash.xxh3_64_intdigest(pair.prompt.tobytes())


def pair_rows(pairs: Sequence[EncodedPair]) -> RolloutRows:
    """Rows 2 i and 2 i + 1 are the chosen and the rejected answer of pair i, a group of their own, as `pack_pairs`
    takes them. The one target of a row is a token behind it, of id 0, which is never computed: its predictor is the
    row's true last token, where the score is read. Rewards: the margin of the chosen one, 0 of the other.
    """
    rows = [(pair.prompt, answer, _BEHIND) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    # An answer is context here: nothing of it is predicted.
    return _rows(pairs, rows, (TokenOrigin.PROMPT, TokenOrigin.ENVIRONMENT, TokenOrigin.SAMPLED))


def answer_rows(pairs: Sequence[EncodedPair]) -> RolloutRows:
    """The same rows, of which the answers are what is trained, end tokens included."""
    rows = [(pair.prompt, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    return _rows(pairs, rows, (TokenOrigin.PROMPT, TokenOrigin.SAMPLED))


_BEHIND = np.zeros(1, np.int32)


def _rows(
    pairs: Sequence[EncodedPair], rows: Sequence[Sequence[IntArray]], origins: Sequence[TokenOrigin]
) -> RolloutRows:
    """origins: of the parts of a row."""
    parts = [part for row in rows for part in row]
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    tokens, ends = np.concatenate(parts), np.cumsum(lengths)[len(origins) - 1 :: len(origins)]
    return RolloutRows(
        offsets=np.concatenate([np.zeros(1, np.int64), ends]),
        token_ids=tokens,
        token_origin=np.repeat(np.tile(np.array(origins, np.uint8), len(rows)), lengths),
        rollout_logprobs=np.zeros(len(tokens), np.float32),
        token_steps=np.full(len(tokens), -1, np.int64),
        group=np.repeat(np.arange(len(pairs)), 2),
        sample_index=np.tile(np.arange(2), len(pairs)),
        rewards=np.array([margin for pair in pairs for margin in (pair.margin, 0.0)]),
        valid=np.ones(2 * len(pairs), bool),
    )
