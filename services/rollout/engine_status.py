"""What the engine of a replica counts, for the live view and for `streamrl status`."""

import asyncio
from typing import Any

import msgspec

from streamrl.services.rollout.engine_thread import EngineThread


async def engine_status(thread: EngineThread) -> dict[str, Any]:
    """The fields of a replica's status that its engine and the thread that steps it know."""
    stats = await asyncio.wrap_future(thread.stats())
    return {
        "version": str(stats.version),
        "running": stats.running,
        "waiting": stats.waiting,
        "generated_tokens": stats.generated_tokens,
        "finished_requests": stats.finished_requests,
        "kv_bytes_used": stats.kv_bytes_used,
        "kept_tokens": stats.kept_tokens,
        "arithmetic": None if stats.arithmetic is None else msgspec.to_builtins(stats.arithmetic),
        "busy_s": thread.busy_s(),
        "spare_steps": thread.spare_steps,
    }
