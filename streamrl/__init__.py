"""streamrl: reinforcement-learning post-training of language models as a durable, exact stream.

Importing the package is cheap: nothing here pulls in torch, Ray or Arrow.
"""

from streamrl.errors import StreamRLError
from streamrl.types import Version

__all__ = ["StreamRLError", "Version", "__version__"]

__version__ = "0.1.0"
