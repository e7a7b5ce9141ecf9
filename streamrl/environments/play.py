"""Plays an episode to its end: environment and engine in turn, and again where the environment fails.

Guarantees that one result comes for each rollout whatever the environment does. One that failed for the environment's
fault is begun anew under the same id, so the same version draws the same tokens, `retries` times at most.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final

import msgspec

from streamrl.clock import Clock
from streamrl.conversations.branches import Branch, Turn
from streamrl.environments.chat import Chat
from streamrl.environments.episode import Episode, EpisodeLimits, Rollout
from streamrl.environments.failure_budget import FailureBudget
from streamrl.environments.outcomes import EnvironmentFault, Fault, Verdict
from streamrl.environments.processes.pool import EnvironmentPool, OpenEpisode, Told
from streamrl.types import FinishReason, GenerationRequest, GenerationResult

Generate = Callable[[GenerationRequest], Awaitable[GenerationResult]]
"""Has the engine answer a request."""
ALONE_AFTER: Final = 3
"""Times that an episode is lost with its process for others' faults, after which it has a process of its own."""
SHOWN: Final = 60
"""Characters of a row's prompt where its episode has failed."""
RECORD: Final = "environment"
"""Key of the payload under which the reward stage finds how the episode ended."""


class EpisodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an episode ended, in the payload of its rows. final: text of the model's last message. limit: what of the run
    ended it, "" where its environment did. info: a JSON object. agent: of several, whose row and reward it is."""

    reward: float | None = None
    components: dict[str, float] = {}
    final: str = ""
    turns: int = 0
    tool_calls: int = 0
    limit: str = ""
    info: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class EndedEpisode:
    """branches: its rows, one at least. finish_reason: of the rollout. error: where that is ERROR. faults: times that
    the environment failed. record: None where it failed or was aborted. agents: whose row each is; empty where there is
    one agent. rewards: each agent's own."""

    branches: Sequence[Branch]
    finish_reason: FinishReason
    record: EpisodeRecord | None
    error: str = ""
    faults: int = 0
    agents: Sequence[str] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)

    @property
    def forks(self) -> int:
        """Branches beside the first one of each agent."""
        return len(self.branches) - max(1, len(set(self.agents)))

    def payload(self, given: str, place: int | None = None) -> str:
        """The row's payload, and how it ended; for the branch at `place`, or for the episode as a whole."""
        if self.record is None:
            return given
        record = self.record
        if place is not None and self.agents:
            agent = self.agents[place]
            reward = self.rewards.get(agent, record.reward)
            record = msgspec.structs.replace(record, agent=agent, reward=reward)
        row: dict[str, Any] = msgspec.json.decode(given)
        return msgspec.json.encode({**row, RECORD: record}).decode()


class Player:
    """Plays episodes of one environment. truncated_reward: of one that a limit ended, where the environment says
    nothing. tell: takes what went wrong with an episode, in words. budget: of the failures of a run's own episodes, for
    who counts them; evaluations spend none of it."""

    def __init__(
        self,
        pool: EnvironmentPool,
        limits: EpisodeLimits,
        chat: Chat,
        clock: Clock,
        *,
        retries: int,
        truncated_reward: float,
        tell: Callable[[str], None],
        budget: FailureBudget | None = None,
    ) -> None:
        self.budget = budget
        self._pool = pool
        self._limits = limits
        self._chat = chat
        self._clock = clock
        self._retries = retries
        self._truncated_reward = truncated_reward
        self._tell = tell

    async def play(self, rollout: Rollout, generate: Generate) -> EndedEpisode:
        """Raises ComponentError where the pool cannot have a child."""
        at_fault = lost = 0
        alone = False
        while True:
            episode = Episode(rollout, self._limits, self._chat, self._clock, self._pool.name)
            try:
                async with self._pool.episode(alone) as environment:
                    ended = await self._play(episode, environment, rollout, generate)
                return replace(ended, faults=at_fault)
            except EnvironmentFault as fault:
                # Alone in its process there is nobody else to blame.
                own = alone or fault.kind.is_its_own
                at_fault += own
                lost += not own
                # One that ends its process takes others with it once.
                alone = alone or fault.kind in (Fault.DIED, Fault.UNCLEAR) or lost >= ALONE_AFTER
                text = f"{_named(rollout)}, turn {episode.turns}: {fault}"
                self._tell(text)
                if at_fault > self._retries:
                    return EndedEpisode([_unplayed(rollout)], FinishReason.ERROR, None, text, at_fault)

    async def _play(
        self, episode: Episode, environment: OpenEpisode, rollout: Rollout, generate: Generate
    ) -> EndedEpisode:
        opening = await environment.reset(rollout.row)
        request = episode.opened(opening.messages, opening.tools, opening.agent)
        while request is not None:
            result = await generate(request)
            if result.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                return _stopped(episode, rollout, result)
            said = episode.sampled(result)
            if episode.limit is not None:
                break
            answer = await environment.step(said.message)
            if isinstance(answer, Verdict):
                return _ended(episode, answer)
            told = answer if isinstance(answer, Told) else Told(answer, None)
            request = episode.went_on(*told)
        if not episode.turns:
            error = f"{_named(rollout)}: its first prompt leaves no room for a turn (environment.max_tokens)"
            self._tell(error)
            return EndedEpisode([_unplayed(rollout)], FinishReason.ERROR, None, error)
        verdict = await environment.truncated()
        if verdict.reward is None and not verdict.rewards:
            verdict = msgspec.structs.replace(verdict, reward=self._truncated_reward)
        return _ended(episode, verdict)


def _named(rollout: Rollout) -> str:
    """Its id, and the beginning of its row's prompt: by the id alone nobody finds the row."""
    text = rollout.text if len(rollout.text) <= SHOWN else f"{rollout.text[: SHOWN - 3]}..."
    return f"{rollout.request.request_id} (row {text!r})"


def _stopped(episode: Episode, rollout: Rollout, result: GenerationResult) -> EndedEpisode:
    """The engine gave up: what was sampled before is kept for those who look, and is not trained."""
    first = (episode.branches() or [_unplayed(rollout)])[0]
    return EndedEpisode([_ending_as(first, result.finish_reason)], result.finish_reason, None, result.error)


def row_of(payload: str, text: str) -> dict[str, Any]:
    """What `reset` is given: the payload's columns, and the prompt's text as `prompt` where there is no such column."""
    found: Mapping[str, Any] = msgspec.json.decode(payload)
    return {"prompt": text, **found}


def _ended(episode: Episode, verdict: Verdict) -> EndedEpisode:
    """Raises EnvironmentFault for rewards that are not those of the agents that spoke."""
    limit, branches = episode.limit, episode.branches()
    reason = FinishReason.STOP if limit is None else FinishReason.LENGTH
    agents = episode.agents()
    spoke = set(agents) - {""}
    if (verdict.rewards and not spoke <= verdict.rewards.keys()) or (verdict.rewards and not spoke):
        whose = f"of {', '.join(sorted(verdict.rewards))}, and {', '.join(sorted(spoke)) or 'one without a name'} spoke"
        raise EnvironmentFault(Fault.GARBAGE, f"its rewards are {whose}")
    own = {agent: reward for agent, reward in verdict.rewards.items() if agent in spoke}
    record = EpisodeRecord(
        fmean(own.values()) if own else verdict.reward,
        verdict.components,
        episode.final,
        episode.turns,
        episode.tool_calls,
        limit.value if limit is not None else "",
        verdict.info,
    )
    ended = [_ending_as(branch, reason) for branch in branches]
    return EndedEpisode(ended, reason, record, agents=agents if spoke else (), rewards=own)


def _ending_as(branch: Branch, reason: FinishReason) -> Branch:
    return replace(branch, finish_reason=reason.value)


def _unplayed(rollout: Rollout) -> Branch:
    """A row without a sampled token."""
    return Branch([Turn(rollout.request.prompt_ids.tolist(), [], [], [])], FinishReason.ERROR.value)
