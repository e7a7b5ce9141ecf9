"""A gateway with a scripted run behind it, for a browser: in a thread with a loop of its own, which a test tells what
to say. The gateway, its guard, its tokens and the owner's socket are the real ones.

`/api/scale` and `/api/samples` answer by script, in the form that the page relies on: a run that samples takes a model.
"""

import asyncio
import math
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.gateway.local_gateway import LONGEST_PROMPT, LocalGateway, local_gateway
from support.runs.scripted_owner import ScriptedOwner

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.auth import Scope
from streamrl.gateway.refusal import Refusal
from streamrl.observability.evaluations import EvaluationRecord, append_evaluations
from streamrl.observability.metrics import MetricsWriter
from streamrl.services.gateway.actor import GatewayActor
from streamrl.services.gateway.path_prefix import PathPrefix

T = TypeVar("T")
LIMIT_S = 60.0
QUEUE_STATES = ("pending", "complete", "scored", "ready", "leased")


class PageServer:
    """Use as a context manager. path_prefix: `gateway.path_prefix`. scale: what `/api/scale` says. samples: of
    `/api/samples`, the newest first."""

    def __init__(self, folder: Path, path_prefix: str = "") -> None:
        self._folder = folder
        self._prefix = path_prefix
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="page server")
        self._up = threading.Event()
        self._failed: BaseException | None = None
        self._owner = ScriptedOwner()
        self._again: tuple[GatewayActor, asyncio.Task[None]] | None = None
        self.scale = {"rollout": {"now": 2, "serving": 2}, "reward": {"now": 2}}
        self.samples: list[dict[str, Any]] = []

    def __enter__(self) -> "PageServer":
        self._thread.start()
        assert self._up.wait(LIMIT_S)
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._down.set)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    # ---- what a test says

    def evaluated(self, record: EvaluationRecord) -> None:
        """`streamrl eval` has measured something."""
        append_evaluations(self._folder / "run" / "evaluations.jsonl", [record])

    @property
    def url(self) -> str:
        return self._gateway.url

    def token(self, scope: Scope | None = Scope.CONTROL) -> str:
        return self._gateway.token(scope)

    @property
    def link(self) -> str:
        return f"{self.url}{self._prefix}/#token={self.token()}"

    @property
    def readers(self) -> int:
        return self._gateway.actor._watch.feed.readers

    @property
    def asked(self) -> int:
        """How often the controller was asked how the run stands."""
        return self._owner.asked

    def tell(self, kind: str, **facts: Any) -> None:
        """An event of the owner's."""
        self._call(self._published({"kind": kind, **facts}))

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Lines of metrics."""
        with MetricsWriter(self._gateway.run.metrics_path) as metrics:
            for row in rows:
                metrics.write(row)

    def damage(self) -> None:
        """Have a line of metrics that is none."""
        with self._gateway.run.metrics_path.open("a") as file:
            file.write("nonsense\n")

    def truncate(self, step: int) -> None:
        """Forget the lines after a step, as a resume does."""
        with MetricsWriter(self._gateway.run.metrics_path) as metrics:
            metrics.truncate_after(step)

    def step(self, row: dict[str, Any]) -> None:
        """A line of metrics that is told as an event too, as a run does."""
        self.write([row])
        self.tell("step", **row)

    def status(self, **facts: Any) -> None:
        """What the controller says from now on."""
        self._owner.status = facts

    def stop_gateway(self) -> None:
        self._call(self._stop())

    def start_gateway(self) -> None:
        """Another gateway of the same run, at the same place."""
        self._call(self._start())

    # ---- in the thread

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _serve(self) -> None:
        self._loop, self._down = asyncio.get_running_loop(), asyncio.Event()
        try:
            settings = GatewayConfig(enabled=True, path_prefix=self._prefix)
            async with local_gateway(self._folder, story=self._owner, gateway=settings) as gateway:
                self._gateway: LocalGateway = gateway
                self._add_contract(gateway.actor)
                self._up.set()
                await self._down.wait()
                await self._stop()
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._up.set()

    async def _published(self, event: dict[str, Any]) -> None:
        self._owner.hub.publish(event)

    async def _stop(self) -> None:
        if self._again is not None:
            actor, serving = self._again
            self._again = None
            await actor.close()
            await serving
        elif not self._gateway.actor._server.should_exit:
            await self._gateway.actor.close()
            while not self._gateway.actor._socket._closed:  # noqa: ASYNC110 - the server has no event for its end
                await asyncio.sleep(0)

    async def _start(self) -> None:
        actor = self._gateway.make()
        await actor.start(1, LONGEST_PROMPT, int(self.url.rsplit(":", 1)[1]))
        self._add_contract(actor)
        self._again = actor, asyncio.create_task(actor.run())

    def _add_contract(self, actor: GatewayActor) -> None:
        door = actor._server.config.app
        guard = door._app if isinstance(door, PathPrefix) else door
        app: FastAPI = guard._app
        # In front of the gateway's own, which would ask a queue and an owner that are not there.
        app.router.routes[:0] = [
            Route("/api/scale", self._scale, methods=["GET", "POST"]),
            Route("/api/samples", self._samples, methods=["GET"]),
        ]

    async def _scale(self, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse(self.scale)
        ((part, wanted),) = (await request.json()).items()
        if wanted > 8:
            raise Refusal(400, "invalid_value", f"{part} = {wanted}: this machine has memory for 8", part)
        before = self.scale[part]["now"]
        self.scale[part]["now"] = wanted
        return JSONResponse({part: wanted, "before": before})

    async def _samples(self, request: Request) -> Response:
        limit, before = int(request.query_params["limit"]), request.query_params.get("before")
        start = 0 if before is None else int(before)
        some = self.samples[start : start + limit]
        more = start + limit < len(self.samples)
        return JSONResponse({"samples": some, "next": str(start + limit) if more else None})


# ---- what a run would say


def row(step: int, seed: int = 0) -> dict[str, Any]:
    """A line of metrics."""
    draw = random.Random(f"{seed} {step}")
    return {
        "step": step,
        "version": f"0.{step}",
        "reward/mean": 0.2 + 0.6 * (1 - math.exp(-step / 300)) + draw.gauss(0, 0.03),
        "staleness/mean": 1 + draw.random(),
        "staleness/max": draw.choice([1, 2]),
        "time/step": 0.2 + 0.05 * draw.random(),
        "time/wait": 0.15 * draw.random(),
        "rollout/idle_share": draw.random() ** 4,
        "rollout/tokens_per_s": 12_000 + 3000 * draw.random(),
        "queue/rows": draw.randrange(200, 400),
        "queue/unscored": draw.randrange(0, 100),
        "weights/bytes": 40_000,
        "weights/full_bytes": 1_587_200,
        "weights/seconds": 0.02 + 0.02 * draw.random(),
        "weights/load_max_s": 0.01 * draw.random(),
        "weights/stall_s": 0.0,
        **({"eval/score": 0.3 + 0.5 * (1 - math.exp(-step / 300))} if step % 50 == 0 else {}),
    }


def standing(step: int, replicas: int = 3, **facts: Any) -> dict[str, Any]:
    """A status of the controller."""
    counts = dict(zip(QUEUE_STATES, (512, 40, 12, 128, 64), strict=True))
    return {
        "metrics": row(step),
        "eval": {"0": 0.3, str(step // 50 * 50): 0.71},
        "steps": step,
        "replicas": [replica(number, step) for number in range(replicas)],
        "queue": {
            **{f"rows_{state}": count for state, count in counts.items()},
            "rows_unscored": 40,
            "groups_dropped": {"zero_variance": 12, "cancelled": 3},
        },
        **facts,
    }


def replica(number: int, step: int) -> dict[str, Any]:
    behind = number % 4
    return {
        "name": f"rollout-{number}",
        "state": "updating" if behind == 3 else "serving",
        "version": f"0.{max(0, step - behind)}",
        "running": 32 - number % 5,
        "waiting": 0,
        "guests": number % 2,
        "generated_tokens": 1000 * step + number,
        "paused": "",
    }


def sample(number: int, *, completion: list[str] | None = None, **facts: Any) -> dict[str, Any]:
    """One of `/api/samples`; higher numbers are newer."""
    tokens = completion or ["12", "+", "30", "=", "4", "2", "\n"]
    count = len(tokens)
    return {
        "group": number,
        "sample": 0,
        "branch": 0,
        "stream": "train",
        "step": number,
        "version_spans": [[0, f"0.{number}"], [count // 2, f"0.{number + 1}"]],
        "prompt": f"{number}+1=",
        "completion": "".join(tokens),
        "token_ids": list(range(count)),
        "tokens": tokens,
        "logprobs": [-0.01 * 3 ** (place % 7) for place in range(count)],
        "entropy": [0.05 * 2 ** (place % 7) for place in range(count)],
        "mismatch": [0.005 * (-2) ** (place % 8) for place in range(count)],
        "mask": [[0, "trained"]],
        "lacks": None,
        "advantage": (-1) ** number * 0.7,
        "reward": number % 2,
        "components": {},
        "finish_reason": "stop",
        "replica": "rollout-0",
        "oddities": [],
        **facts,
    }
