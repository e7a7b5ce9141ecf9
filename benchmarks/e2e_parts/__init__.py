"""What `bench_e2e` runs, keeps and draws: both sides on one model, their scores by one scorer, and the picture.

It imports `streamrl` and `learning_study`. Nothing of TRL: that side is a process in an environment of its own.
"""
