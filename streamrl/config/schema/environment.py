"""The table of the environment that rollouts of several turns are played in."""

from typing import Any

from streamrl.config.schema.table import NonNegative, Positive, PositiveFloat, Table


class EnvironmentConfig(Table, frozen=True):
    """Rollouts of several turns: who answers the model, and how far an episode goes (docs/guides/environments.md)."""

    name: str | None = None
    """A built-in environment (`tools`), or `module:Class` of one's own. Without it a rollout is one completion of its
    prompt."""
    options: dict[str, Any] | None = None
    """What the class is called with, for each episode."""
    tools: tuple[str, ...] = ()
    """Of the environment `tools`: what the model may call, `calculator` or `module:function` of one's own."""
    max_turns: Positive = 8
    """Messages of the model in one episode."""
    max_tool_calls: Positive | None = None
    """Tool calls of one episode; any number when absent."""
    max_tokens: Positive = 2048
    """Tokens of one episode, prompts and answers, over all of its branches. Queue, packs and KV cache make room for
    them."""
    step_timeout_s: PositiveFloat = 30.0
    """Seconds that one call of the environment may take; then its episode is begun anew."""
    episode_timeout_s: PositiveFloat = 120.0
    """Seconds after which an episode is ended as truncated, between two turns."""
    retries: NonNegative = 2
    """Times that an episode is begun anew for the environment's fault: it raised, hung, died, or gave what is no
    message. Then the rollout has failed (`reward.max_failed`)."""
    truncated_reward: float = 0.0
    """Reward of an episode that a limit ended, where the environment has no method `truncated`."""
    workers: Positive = 1
    """Child processes of each replica in which environments live."""
    concurrency: Positive = 64
    """Calls that one of them runs at once; others wait."""
    memory_bytes: Positive = 4 * 2**30
    """Limit of a child's address space, in bytes."""
