"""What a replica plays, as its configuration has it: rollouts of one turn or episodes, each with its evaluation.

It imports torch by the evaluations.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from streamrl.config import Config
from streamrl.config.estimates.sizes import final_bytes
from streamrl.environments.open import environment_pool, episode_player
from streamrl.models.tokenizer import TextTokenizer
from streamrl.services.rollout.engine_thread import EngineThread
from streamrl.services.rollout.episode_evaluations import EpisodesHeldOut
from streamrl.services.rollout.episodes import EpisodeRollouts
from streamrl.services.rollout.evaluations import HeldOut
from streamrl.services.rollout.partial_journal import PartialJournal
from streamrl.services.rollout.rows import Ended
from streamrl.services.rollout.single_turn import SingleTurnRollouts
from streamrl.services.run.layout import STACKS_FOLDER
from streamrl.tasks.base import Task


class Parts(NamedTuple):
    """What a replica gives to whoever plays for it. run: the run folder. ended: takes what finished. ordered: told by
    the engine thread how each order to it went. died: told of an error after which nothing is played. warn: its log."""

    name: str
    config: Config
    run: Path
    thread: EngineThread
    journal: PartialJournal
    ended: Ended
    ordered: "Callable[[Future[None]], None]"
    died: Callable[[BaseException], None]
    warn: Callable[..., Any]


async def open_rollouts(
    parts: Parts, folder: Path, max_length: int, task: Task, tokenizer: TextTokenizer
) -> tuple[SingleTurnRollouts, HeldOut] | tuple[EpisodeRollouts, EpisodesHeldOut]:
    """The rollouts, and the held-out prompts played in the same way. folder: of the model. max_length: of a row, in
    tokens."""
    config, thread, ended, ordered = parts.config, parts.thread, parts.ended, parts.ordered
    if not config.plays_episodes:
        single = SingleTurnRollouts(parts.name, thread, parts.journal, ended, ordered)
        return single, HeldOut(config, folder, max_length, task, tokenizer)
    pool = environment_pool(config, [path for path in sys.path if path], str(parts.run / STACKS_FOLDER))
    player = episode_player(config, folder, pool, tokenizer, final_bytes(config), parts.warn)
    await pool.start()
    journal, seed, loop = parts.journal, config.seed, asyncio.get_running_loop()
    episodes = EpisodeRollouts(parts.name, thread, pool, player, journal, seed, ended, ordered, parts.died)
    held_out = EpisodesHeldOut(config, folder, max_length, task, tokenizer, player, loop, thread.wake)
    return episodes, held_out
