"""What the controller writes down of a run: metrics, events for whoever watches, and the summary at the end.

Knows nothing of actors. Everything it is told ends in `metrics.jsonl`, in the event log, or in the summary.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from streamrl.config import Config
from streamrl.config.estimates.log_budget import log_shares
from streamrl.evaluation import EvalScore
from streamrl.observability.episode_figures import EpisodeFigures
from streamrl.observability.metrics import STANDS_FOR, MetricsWriter, Summary, read_metrics
from streamrl.observability.plot import reward_curve
from streamrl.observability.plural import how_many
from streamrl.services.controller.events import EventLog
from streamrl.services.controller.trackers import ending, finish_limit_s, tracker_hub
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.resumed import EVENT
from streamrl.types import Version

SUMMED = ("time/step", "time/wait")


class RunBook:
    """One launch of one run."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        self.events = EventLog()
        self._run = run
        self._config = config
        self.trackers = tracker_hub(run, config)
        self._metrics = MetricsWriter(run.metrics_path, self.trackers, log_shares(config).metrics)
        self._summary: dict[str, Any] = {}
        self._told_thinned = False
        self._last: dict[str, Any] = {}
        self._resumed: dict[str, Any] = {}
        self._scores: dict[int, float | None] = {}
        self._pending_score: dict[str, Any] = {}
        self._parts: dict[str, float] = {}
        self._totals = dict.fromkeys(SUMMED, 0.0)
        self._staleness_max = 0
        self._staleness_sum = 0.0
        self._steps = 0
        self._versions = 0
        self._busy: dict[str, float] = {}
        self._looked = 0.0
        self._idle_share = 0.0
        self._continued: dict[str, int] = {}
        self._episodes = EpisodeFigures()
        self._continued_before = 0
        """Of processes that were replaced."""
        self._newest_step = -1
        self._trained = self._committed = 0
        """The newest step, and that of the newest checkpoint."""

    def resume(self, step: int) -> None:
        """Forget the lines after the checkpoint that is resumed: those steps are made again."""
        self._trained = self._committed = step
        self._metrics.truncate_after(step, self._notice)
        self._scores, self._totals = {}, dict.fromkeys(SUMMED, 0.0)
        self._staleness_max, self._staleness_sum, self._steps, self._versions = 0, 0.0, 0, 0
        for line in read_metrics(self._run.metrics_path):
            if "eval/score" in line:
                self._scores[line["eval/step"]] = line["eval/score"]
            if "time/step" in line:
                self._count(line)

    def report(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Take down one event; a `step` is a line of metrics too."""
        if kind == EVENT:
            self._resumed = dict(facts)
        if kind == "step":
            own = {"rollout/idle_share": self._idle_share, **self._episodes.since()}
            facts = {**facts, **own, **self._take_pending_score()}
            self._count(facts)
            self._metrics.write(facts)
            self._report_thinned()
            self._last = facts
            self._trained = facts["step"]
            self._newest_step = max(self._newest_step, facts["step"])
        if kind == "checkpoint":
            self._committed = facts["step"]
        self.events.add({"kind": kind, **facts})

    def scored(self, version: Version, score: EvalScore) -> None:
        """A version's held-out score; it goes into the next line of metrics, with the step that it is of."""
        self._scores[version.step] = score.mean
        failed = score.num_failed
        self._parts = parts = {f"eval/{name}": value for name, value in score.parts.items()}
        self._pending_score = {"eval/score": score.mean, "eval/step": version.step, "eval/failed": failed, **parts}
        self.events.add({"kind": "eval", "step": version.step, "score": score.mean, "failed": failed, **parts})

    @property
    def newest_step(self) -> int:
        """The highest step that was ever reported; -1 before the first."""
        return self._newest_step

    @property
    def version(self) -> str:
        """The newest version that the learner reported; empty before the first step."""
        return str(self._last.get("version", ""))

    def steps_to_repeat(self) -> str:
        """What the death of the learner costs at this moment, in words: the steps after the newest checkpoint."""
        steps = how_many(max(0, self._trained - self._committed), "step", "steps")
        return f"trained again: {steps} after {self._committed}"

    def replicas(self, replicas: list[dict[str, Any]], now: float) -> None:
        """What the replicas say of themselves, about once a second; `now` in seconds of a monotonic clock."""
        busy = {one["name"]: one["busy_s"] for one in replicas}
        shares = [(busy[name] - self._busy[name]) / (now - self._looked) for name in busy.keys() & self._busy.keys()]
        if shares:
            self._idle_share = min(1.0, max(0.0, 1.0 - sum(shares) / len(shares)))
        self._busy, self._looked = busy, now
        for one in replicas:
            known, tokens = self._continued.get(one["name"], 0), one["tokens_continued"]
            self._continued_before += known if tokens < known else 0
            self._continued[one["name"]] = tokens
        self._episodes.take(replicas)
        self._tell_of_trackers()
        self.events.add({"kind": "replicas", "replicas": replicas})

    def status(self) -> dict[str, Any]:
        resumed = {"resumed": self._resumed} if self._resumed else {}
        trackers = {"trackers": told} if (told := self.trackers.status()) else {}
        return {"metrics": self._last, "eval": self._scores, "steps": self._steps, **trackers, **resumed}

    def summary(self, result: dict[str, Any]) -> dict[str, Any]:
        """The figures of the finished run, as `streamrl.observability.metrics.Summary`. The wall clock is the owner's
        to fill in."""
        if self._pending_score:
            self._metrics.write({"step": result["step"], **self._take_pending_score()})
        reward_curve(self._run.metrics_path, self._run.curve_path)
        seconds = self._totals["time/step"]
        trained = self._steps * self._config.rollouts_per_step
        summary = Summary(
            eval_before=self._scores.get(0),
            eval_after=self._scores.get(result["step"]),
            eval_parts=self._parts,
            wall_s=0.0,
            steps=result["step"],
            rollouts_per_s=trained / seconds if seconds else 0.0,
            seed=self._config.seed,
            durability=self._config.promise,
            export=str(self._run.export_path),
            curve=str(self._run.curve_path),
            staleness_mean=self._staleness_sum / self._steps if self._steps else 0.0,
            staleness_max=self._staleness_max,
            versions_published=self._versions,
            two_version_rollouts=result["two_version_rollouts"],
            discards=sum(result["discards_by_reason"].values()) * self._config.rollout.group_size,
            discards_by_reason=result["discards_by_reason"],
            tokens_continued=self._continued_before + sum(self._continued.values()),
            rows_lost=result.get("rows_lost", 0),
            prompts_quarantined=result.get("prompts_quarantined", 0),
            rows_too_long=result.get("rows_too_long", 0),
            rows_unusable=result.get("rows_unusable", 0),
            rows_fetched=result.get("fetched", {}).get("rows", 0),
            bytes_fetched=result.get("fetched", {}).get("bytes", 0),
            learner_wait_share=self._totals["time/wait"] / seconds if seconds else 0.0,
        )
        self._summary = msgspec.to_builtins(summary)
        return self._summary

    def finish_trackers(self, *, stopping: bool) -> None:
        """Tell the trackers how the launch ended, and wait until they have all, for as long as a run waits for that.
        Any thread may call it."""
        self.trackers.finish(ending(self._run, self._config, self._summary, stopping=stopping))
        self.trackers.close(finish_limit_s(self._config, stopping=stopping))

    def close(self) -> None:
        self._metrics.close()
        self._tell_of_trackers()
        self.events.close()

    def _tell_of_trackers(self) -> None:
        for text in self.trackers.take_news():
            self._notice(text)

    def _report_thinned(self) -> None:
        if self._metrics.num_thinned and not self._told_thinned:
            self._told_thinned = True
            why = "metrics.jsonl has reached its share of observe.log_bytes"
            self._notice(f"{why}: of older steps every second line is left out")

    def _notice(self, text: str) -> None:
        self.events.add({"kind": "notice", "text": text})

    def _take_pending_score(self) -> dict[str, Any]:
        pending, self._pending_score = self._pending_score, {}
        return pending

    def _count(self, facts: dict[str, Any]) -> None:
        # A line that was kept when its neighbours were left out counts for them too.
        count = facts.get(STANDS_FOR, 1)
        for key in SUMMED:
            self._totals[key] += facts[key] * count
        self._steps += count
        self._versions += count
        self._staleness_sum += facts["staleness/mean"] * count
        self._staleness_max = max(self._staleness_max, facts["staleness/max"])
