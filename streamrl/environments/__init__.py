"""Environments: episodes of several turns, their tools, and the child processes in which other people's code runs.
It imports `streamrl.config`, `streamrl.conversations`, `streamrl.models`, `streamrl.plugin`, `streamrl.rewards`,
`streamrl.sandbox` and `streamrl.system`.
No engine, no queue and no rows: who generates is given as a function.
"""

from streamrl.environments.base import Done, Environment, Message, ToAgent

__all__ = ["Done", "Environment", "Message", "ToAgent"]
