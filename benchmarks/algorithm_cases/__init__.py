"""What `bench_algorithms.py` trains: a small task, and each choice of advantage, loss and correction on it.

It imports streamrl and its own modules. No report and no command line.
"""
