"""streamrl: reinforcement-learning post-training of language models as a durable, exact stream.
It imports its own folders alone, and none of them when the package is imported: that is cheap.
No Ray and no Arrow: these are of `buffers` and `services`.
"""

from streamrl.errors import StreamRLError

__all__ = ["StreamRLError", "Version", "__version__", "connect"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """On first use, since a command's start-up would feel the imports: `Version` needs numpy, `connect` HTTP."""
    if name == "Version":
        from streamrl.types import Version

        return Version
    if name == "connect":
        from streamrl.client import connect

        return connect
    raise AttributeError(f"module 'streamrl' has no attribute {name!r}")
