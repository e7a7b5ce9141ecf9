"""streamrl: reinforcement-learning post-training of language models as a durable, exact stream.

Importing the package is cheap: nothing here pulls in torch, Ray or Arrow.
"""

from streamrl.errors import StreamRLError

__all__ = ["StreamRLError", "Version", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`Version` on first use: its module needs numpy, whose import a command's start-up would feel."""
    if name != "Version":
        raise AttributeError(f"module 'streamrl' has no attribute {name!r}")
    from streamrl.types import Version

    return Version
