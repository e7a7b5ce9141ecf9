"""The critic of one learner rank, made from the configuration."""

from pathlib import Path

from services.layout import model_folder, start_folder
from streamrl.config import Config
from streamrl.errors import ConfigError
from streamrl.learner.critic import Critic
from streamrl.learner.process_group import LearnerGroup
from streamrl.learner.value_model import ShardedCritic, decoder_of
from streamrl.models.load import DTYPES, load_model
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer


def make_critic(run_folder: Path, config: Config, group: LearnerGroup, tokenizer: TextTokenizer) -> Critic | None:
    """Collective. None where the advantage needs none. It begins with `learner.critic.path`, or else with the weights
    that the stream begins with, as far as they are there: before a warm-up, with those before it.

    Raises ConfigError for a critic of another vocabulary than `tokenizer`'s.
    """
    learner, dtype = config.learner, config.model.dtype
    if not learner.algorithm.has_critic:
        return None
    folder = start_folder(run_folder, config)
    if learner.critic.path is not None:
        folder = Path(learner.critic.path).expanduser().resolve()
        require_same_vocabulary(folder, tokenizer)
    elif not folder.is_dir():
        folder = model_folder(run_folder, config)
    model = ShardedCritic(decoder_of(load_model(folder, dtype)), group, DTYPES[dtype])
    return Critic(model, learner.critic, learner.steps)


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
