"""Makes `docs/benchmarks.md` and the figures of the README from the records in `benchmarks/results`.

It reads records and writes text; it measures nothing, and imports nothing of streamrl. `make benchmarks-page` runs it.
"""
