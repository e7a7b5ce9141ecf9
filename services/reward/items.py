"""Rows of the completions log as the reward pool takes them."""

from itertools import pairwise

import msgspec

from streamrl.buffers.rows.gather import ScoringRows
from streamrl.environments.play import EpisodeRecord
from streamrl.models.tokenizer import TextTokenizer
from streamrl.rewards.base import RewardItem
from streamrl.types import IntArray, LongArray


class _Payload(msgspec.Struct):
    """What is looked at of an episode's payload. environment: None where it failed."""

    environment: EpisodeRecord | None = None


def reward_items(rows: ScoringRows, tokenizer: TextTokenizer, *, of_episodes: bool = False) -> list[RewardItem]:
    """Texts, token ids and payloads of rows, as the reward pool takes them. of_episodes: the completion is the last
    message of the episode then, the same for all of its branches."""
    completions = tokenizer.decode_batch(rows.sampled_ids, rows.sampled_offsets)
    if of_episodes:
        records = [msgspec.json.decode(payload, type=_Payload).environment for payload in rows.payload]
        pairs = zip(completions, records, strict=True)
        completions = [text if record is None else record.final for text, record in pairs]
    prompts = tokenizer.decode_batch(rows.prompt_ids, rows.prompt_offsets)
    sampled, asked = _id_bytes(rows.sampled_ids, rows.sampled_offsets), _id_bytes(rows.prompt_ids, rows.prompt_offsets)
    columns = (completions, prompts, rows.payload, rows.finish_reason, sampled, asked)
    return [RewardItem(*fields) for fields in zip(*columns, strict=True)]


def _id_bytes(ids_T: IntArray, offsets: LongArray) -> list[bytes]:
    """The ids of each row as `RewardItem` has them."""
    whole = ids_T.astype("<i4").tobytes()
    return [whole[4 * start : 4 * end] for start, end in pairwise(offsets.tolist())]
