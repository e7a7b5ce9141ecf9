"""The auxiliary model of one learner rank, made from the configuration."""

from pathlib import Path

from streamrl.config import Config
from streamrl.errors import ConfigError
from streamrl.learner.auxiliary.auxiliary import AuxiliaryModel
from streamrl.learner.auxiliary.critic import Critic
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences
from streamrl.learner.auxiliary.prime import ImplicitRewardModel
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import ShardedCritic, decoder_of
from streamrl.learner.parallel.process_group import LearnerGroup
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.models.load import DTYPES, load_model
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.services.run.layout import model_folder, start_folder


def make_auxiliary_model(
    run_folder: Path, config: Config, group: LearnerGroup, tokenizer: TextTokenizer, reference: FrozenPolicy | None
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
        return _make_critic(start, config, group, tokenizer, reference)
    if config.learner.algorithm.has_implicit_rewards:
        assert reference is not None
        return _make_implicit_reward_model(start, config, group, reference)
    return None


def _make_critic(
    start: Path, config: Config, group: LearnerGroup, tokenizer: TextTokenizer, reference: FrozenPolicy | None
) -> Critic:
    learner, dtype = config.learner, config.model.dtype
    if learner.critic.path is not None:
        start = Path(learner.critic.path).expanduser().resolve()
        require_same_vocabulary(start, tokenizer)
    model = ShardedCritic(decoder_of(load_model(start, dtype)), group, DTYPES[dtype], learner.execution)
    divergences = None
    if learner.algorithm.kl_in_reward:
        assert reference is not None
        algorithm, temperature = learner.algorithm, config.rollout.sampling.temperature
        divergences = TokenDivergences(reference, algorithm.kl_estimator, algorithm.kl_coef, temperature, group)
    return Critic(model, learner.critic, learner.steps, divergences=divergences)


def _make_implicit_reward_model(
    start: Path, config: Config, group: LearnerGroup, reference: FrozenPolicy
) -> ImplicitRewardModel:
    learner, dtype = config.learner, config.model.dtype
    model = ShardedPolicy(load_model(start, dtype), group, DTYPES[dtype], learner.execution)
    return ImplicitRewardModel(model, reference, learner.prime, learner.steps)


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
