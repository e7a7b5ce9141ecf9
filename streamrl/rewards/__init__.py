"""Rewards: functions of a completion, run in child processes that can be killed.
It imports `streamrl.models`, `streamrl.system`, `streamrl.config`, `streamrl.sandbox` and
`streamrl.plugin`.
It knows text. No queue and no rows; tensors only where a reward model is asked for.
"""
