"""The processes of `bench_queue.py`: who writes, scores, reads, and what carries rows otherwise.

It imports buffers, services and its own modules. No command line.
"""
