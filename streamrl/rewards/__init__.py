"""Rewards: functions of a completion, run in child processes that can be killed. Knows text; tensors only
where a reward model is asked for."""
