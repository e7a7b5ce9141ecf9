"""Whether two models mean the same by an id. Imports neither torch nor transformers."""

from pathlib import Path

from streamrl.errors import ConfigError
from streamrl.models.tokenizer import load_tokenizer


def require_same_vocabulary(folder: Path, other: Path, key: str = "learner.algorithm.reference.path") -> None:
    """Raise ConfigError unless the tokenizers of both folders give every token the same id: a reference is asked for
    the log-probs, a reward model for a score, of ids that the trained model sampled. key: what names `other`."""
    ours, theirs = (load_tokenizer(one).vocabulary() for one in (folder, other))
    if ours == theirs:
        return
    differ = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    first = differ[0]
    raise ConfigError(
        f"{key}: {other} has another vocabulary than the trained model: {len(differ)} tokens differ, among them "
        f"{first!r}, which is {ours.get(first, 'no id')} here and {theirs.get(first, 'no id')} there; give a model "
        "with the same tokenizer"
    )
