"""The processes of `bench_weights.py`: who publishes, who takes up, and whole runs.

It imports streamrl, services and its own modules. No command line.
"""
