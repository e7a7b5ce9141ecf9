"""From a configuration to what plays its episodes."""

from collections.abc import Callable, Sequence
from pathlib import Path

from streamrl.clock import SystemClock
from streamrl.config.schema.run import Config
from streamrl.environments.chat import Chat
from streamrl.environments.episode import EpisodeLimits
from streamrl.environments.failure_budget import FailureBudget
from streamrl.environments.play import Player
from streamrl.environments.processes.pool import EnvironmentPool
from streamrl.environments.processes.worker import WorkerSettings
from streamrl.errors import ConfigError
from streamrl.models.chat_template import load_chat_template
from streamrl.models.tokenizer import TextTokenizer


def environment_pool(config: Config, import_paths: Sequence[str], stacks: str = "") -> EnvironmentPool:
    """Of `[environment]`, which has a name; not started. import_paths, stacks: see `WorkerSettings`."""
    environment = config.environment
    assert environment.name is not None
    settings = WorkerSettings(
        name=environment.name,
        options=environment.options or {},
        tools=environment.tools,
        sandbox=config.sandbox,
        memory_bytes=environment.memory_bytes,
        import_paths=import_paths,
        stacks=stacks,
    )
    return EnvironmentPool(
        settings,
        workers=environment.workers,
        timeout_s=environment.step_timeout_s,
        concurrency=environment.concurrency,
    )


def model_chat(config: Config, folder: Path, tokenizer: TextTokenizer) -> Chat:
    """How messages become ids, and ids messages, with the model of a folder.

    Raises ConfigError for a model without a chat template, and for tools that its template does not know, or whose
    calls it asks for in a form that is not read."""
    environment = config.environment
    template = load_chat_template(folder)
    if template is None:
        raise ConfigError(
            f"environment {environment.name!r}: the model has no chat template, by which messages become a prompt; put "
            "a chat_template.jinja beside the model"
        )
    chat = Chat(tokenizer, template, config.data.chat_template_kwargs)
    if environment.tools and not chat.reads_tool_calls:
        lacks = "asks for calls in a form that is not read here" if template.supports_tools else "does not know tools"
        raise ConfigError(
            f"environment {environment.name!r}: the model's chat template {lacks} (<tool_call>...</tool_call> is); "
            "give it another chat_template.jinja, or write and read calls in an environment of your own"
        )
    return chat


def episode_player(
    config: Config,
    folder: Path,
    pool: EnvironmentPool,
    tokenizer: TextTokenizer,
    final_bytes: int,
    tell: Callable[[str], None],
) -> Player:
    """Plays episodes with the model of a folder. final_bytes: of its last message that an episode's record keeps. tell:
    takes what goes wrong with an episode. Raises ConfigError as `model_chat` does."""
    environment = config.environment
    limits = EpisodeLimits(
        max_turns=environment.max_turns,
        max_tokens=environment.max_tokens,
        context=environment.max_tokens,
        timeout_s=environment.episode_timeout_s,
        max_tool_calls=environment.max_tool_calls,
        final_bytes=final_bytes,
    )
    return Player(
        pool,
        limits,
        model_chat(config, folder, tokenizer),
        SystemClock(),
        retries=environment.retries,
        truncated_reward=environment.truncated_reward,
        tell=tell,
        budget=FailureBudget(str(environment.name), config.rollouts_per_step, config.reward.max_failed),
    )
