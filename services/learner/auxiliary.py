"""The auxiliary model of one learner rank, made from the configuration."""

from functools import partial
from pathlib import Path

from streamrl.config import Config
from streamrl.errors import ConfigError
from streamrl.learner.auxiliary.auxiliary import AuxiliaryModel
from streamrl.learner.auxiliary.critic import Critic, critic_objective
from streamrl.learner.auxiliary.implicit_rewards import TEMPERATURE
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences
from streamrl.learner.auxiliary.prime import ImplicitRewardModel, prime_objective
from streamrl.models.load import load_model
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.services.learner.backends import Ranks, Referred
from streamrl.services.learner.policies import require_layout
from streamrl.services.run.layout import model_folder, start_folder


def make_auxiliary_model(
    run_folder: Path, config: Config, ranks: Ranks, tokenizer: TextTokenizer, reference: Referred | None
) -> AuxiliaryModel | None:
    """Collective. None where the advantage needs none. reference: the policy that stands still, where there is one.

    It begins with the weights that the stream begins with, as far as they are there: before a warm-up, with those
    before it; a critic with `learner.critic.path`, if it is set. Raises ConfigError for one of another vocabulary than
    `tokenizer`'s.
    """
    start = start_folder(run_folder, config)
    if not start.is_dir():
        start = model_folder(run_folder, config)
    if config.learner.algorithm.has_critic:
        return _make_critic(start, config, ranks, tokenizer, reference)
    if config.learner.algorithm.has_implicit_rewards:
        assert reference is not None
        return _make_implicit_reward_model(start, config, ranks, reference)
    return None


def _make_critic(
    start: Path, config: Config, ranks: Ranks, tokenizer: TextTokenizer, reference: Referred | None
) -> Critic:
    critic, algorithm = config.learner.critic, config.learner.algorithm
    if critic.path is not None:
        start = Path(critic.path).expanduser().resolve()
        require_same_vocabulary(start, tokenizer)
        if config.learner.backend == "megatron":
            require_layout(config, start, "learner.critic.path")
    parts = ranks.beside(load_model(start, config.model.dtype), critic_objective(critic), critic.optimizer)
    divergences = None
    if algorithm.kl_in_reward:
        assert reference is not None
        asked = partial(reference, temperature=config.rollout.sampling.temperature)
        divergences = TokenDivergences(asked, algorithm.kl_estimator, algorithm.kl_coef, ranks.group)
    return Critic(parts, critic, divergences)


def _make_implicit_reward_model(start: Path, config: Config, ranks: Ranks, reference: Referred) -> ImplicitRewardModel:
    prime = config.learner.prime
    parts = ranks.beside(load_model(start, config.model.dtype), prime_objective(prime), prime.optimizer)
    return ImplicitRewardModel(parts, partial(reference, temperature=TEMPERATURE), prime)


def require_same_vocabulary(folder: Path, tokenizer: TextTokenizer) -> None:
    """Raise ConfigError unless the tokenizer in `folder` has the same tokens under the same ids: the critic reads the
    policy's."""
    mine, its = tokenizer.vocabulary(), load_tokenizer(folder).vocabulary()
    differing = sorted(token for token in mine.keys() | its.keys() if mine.get(token) != its.get(token))
    if differing:
        token = differing[0]
        raise ConfigError(
            f"learner.critic.path: {folder} has another vocabulary than the policy ({len(differing)} tokens differ; "
            f"{token!r} is {its.get(token, 'unknown')} there and {mine.get(token, 'unknown')} here), and the critic "
            "reads the policy's tokens; take a model of the same tokenizer, or leave this key out"
        )
