"""What `bench_learning.py` runs and draws: runs of two tasks over seeds, their curves, the table of staleness.

It imports streamrl and its own modules; the configurations of its runs lie beside them. No command line.
"""
