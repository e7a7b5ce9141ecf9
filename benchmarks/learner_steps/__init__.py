"""What `bench_learner.py` and `gpu` work on: models, rows, and log-probs over a large vocabulary.

It imports streamrl and its own modules. No command line.
"""
