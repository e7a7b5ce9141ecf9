"""A learner rank that meets the others and never comes to a step: it waits for its standard input to end.

python hanging_rank.py STORE RUN_FOLDER CONFIG
"""

import json
import sys
from pathlib import Path

import msgspec

from streamrl.config import Config
from streamrl.services.learner.core import LearnerCore
from streamrl.services.run.folder import RunFolder


def main(store: str, folder: str, config: str) -> None:
    core = LearnerCore(RunFolder.open(Path(folder)), msgspec.convert(json.loads(config), Config), 1, Path(store))
    core.build()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
