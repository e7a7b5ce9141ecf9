"""Engines that are server processes in environments of their own, spoken to over loopback HTTP.
It imports `streamrl.config`, `streamrl.models` and `streamrl.scheduling`.
`contract` is the interface between the engine, which keeps the books of requests and versions, and one server
program's routes. Nothing here imports vllm or sglang.
"""
