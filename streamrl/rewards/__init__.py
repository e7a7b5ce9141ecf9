"""Rewards: functions of a completion, run in child processes that can be killed. Knows text, no tensors."""
