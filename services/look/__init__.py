"""Looking at a run from outside, live or not: its rows, its checksums, and what bounds it."""
