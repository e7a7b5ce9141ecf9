"""What `bench_service` loads a gateway with; `tests/service` uses it, too.

It imports aiohttp. No run and no figure.
"""
