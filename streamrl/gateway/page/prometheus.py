"""What a Prometheus server reads: the newest figures of the run, and what the gateway itself counted."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

PREFIX = "streamrl_"


class GatewayCounts:
    """Counters of one gateway, since it was started."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}gateway_requests", "Requests answered", ["route", "status"], registry=self._registry
        )
        self._tokens = Counter(f"{PREFIX}gateway_tokens", "Tokens given to clients", registry=self._registry)
        self._running = Gauge(f"{PREFIX}gateway_completions_running", "Completions under way", registry=self._registry)

    def answered(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def sampled(self, tokens: int) -> None:
        self._tokens.inc(tokens)

    def text(self, running: int, status: Mapping[str, Any]) -> bytes:
        """In Prometheus's text format, version 0.0.4. status: of the run, as `streamrl status` has it."""
        self._running.set(running)
        figures = CollectorRegistry()
        figures.register(_Figures(status))
        return generate_latest(self._registry) + generate_latest(figures)


class _Figures(Collector):
    """The numbers of a line of metrics.jsonl, the newest held-out score, those of the queue and of each replica."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, value in _numbers(self._status.get("metrics") or {}):
            yield GaugeMetricFamily(PREFIX + _plain(name), f"{name} of metrics.jsonl, newest step", value=value)
        yield from self._scores()
        for name, value in _numbers(self._status.get("queue") or {}):
            yield GaugeMetricFamily(f"{PREFIX}queue_now_{_plain(name)}", f"{name} of the queue", value=value)
        yield from self._replicas()

    def _scores(self) -> Iterable[GaugeMetricFamily]:
        scores = {int(step): score for step, score in (self._status.get("eval") or {}).items() if score is not None}
        if scores:
            newest = max(scores)
            yield GaugeMetricFamily(f"{PREFIX}eval_score", "held-out score, the newest", value=scores[newest])
            yield GaugeMetricFamily(f"{PREFIX}eval_step", "step of the newest held-out score", value=newest)

    def _replicas(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for replica in self._status.get("replicas") or []:
            for name, value in _numbers(replica):
                family = families.setdefault(
                    name, GaugeMetricFamily(f"{PREFIX}replica_{_plain(name)}", f"{name} of a replica", labels=["name"])
                )
                family.add_metric([replica["name"]], value)
        return families.values()


def _numbers(facts: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in facts.items():
        if isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def _plain(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
