"""What `bench_engine.py` measures beside the whole engine: what each way to multiply rows costs.

It imports streamrl. No command line but that of its own child process.
"""
