"""Trackers: wandb, MLflow, trackio, SwanLab, TensorBoard and OpenTelemetry, each in a child process of its own.
It imports `streamrl.system`, `streamrl.observability`.
No package of a tracker is imported before its child starts, and nothing of a tracker runs in a part of the run.
"""
