"""The learner: its ranks, and what each does beside its steps: checkpoints, publications."""
