"""What bounds a run's speed: the one part that the others wait for, by the rows of `metrics.jsonl`. Pure.

    the learner hardly waits       learner, or weights where it stands still for publishing them
    it waits for scores alone      reward; so it is where finished rollouts pile up
    replicas stand still           weights: requests wait while a version is loaded
    replicas have no work          weights where a step is mostly the way of a version to them, else admission
    none of these                  generation

Looked at in this order.
"""

from collections.abc import Sequence

from streamrl.config.schema.run import Config
from streamrl.services.inspect.findings import Finding, Row, mean, values

BUSY = 0.10
"""Below this share of waiting, the learner itself is what takes the time."""
IDLE = 0.10
"""Share of the replicas' time without work, from which on admission holds them back."""
STALLED = 0.25
"""Share of the replicas' time in which requests stand still for a version, from which on loading is what bounds them:
generation has the rest, so far below it is generation."""
MOSTLY = 0.5
"""Share of what a step waits for, from which on no other part can be larger."""
PUBLISH = "time/publish"

Figures = dict[str, float]


def bound_by(rows: Sequence[Row], config: Config) -> Finding | None:
    """None where rows do not say how long the learner waits."""
    # The first step waits until replicas and scorers are there, and for the first rollouts of all.
    rows = [row for row in rows if row["step"] > 1] or rows
    step, wait = mean(rows, "time/step"), mean(rows, "time/wait")
    if not step or wait is None:
        return None
    share = wait / step
    figures = {"time/wait": wait, "time/step": step, "share": share}
    if share < BUSY:
        return _learner(rows, figures)
    waits = f"the learner waits {share:.0%} of its time"
    looks = (_reward, _weights, _admission)
    found = (look(rows, config, waits, figures) for look in looks)
    return next((finding for finding in found if finding), None) or _generation(rows, config, waits, figures)


def _learner(rows: Sequence[Row], figures: Figures) -> Finding:
    keys = {key for row in rows for key in row if key.startswith("time/")} - {"time/step", "time/wait"}
    means = {key: value for key in sorted(keys) if (value := mean(rows, key)) is not None}
    text = f"rows are ready: the learner waits only {figures['share']:.0%} of its time"
    longest = max(means, key=lambda key: means[key], default=None)
    if longest is None:
        return Finding("bound by learner", f"{text}; raise learner.threads or learner.num_workers", figures)
    figures, part = {**figures, longest: means[longest]}, means[longest] / figures["time/step"]
    if longest == PUBLISH:
        return _publishing(rows, part, figures)
    text += f"; the longest part of its step is {longest[5:]}, {part:.0%}"
    return Finding("bound by learner", f"{text}; raise learner.threads or learner.num_workers", figures)


def _publishing(rows: Sequence[Row], part: float, figures: Figures) -> Finding:
    """The learner waits for the version before to be published, which may wait for room."""
    text = f"the learner stands still {part:.0%} of its time until the version before is published"
    room = mean(rows, "weights/room_s")
    if room is not None:
        figures, text = {**figures, "weights/room_s": room}, f"{text}, of which {room:.2f} s a step for shared memory"
    return Finding("bound by weights", f"{text}; raise learner.groups_per_step, so that versions are fewer", figures)


def _reward(rows: Sequence[Row], config: Config, waits: str, figures: Figures) -> Finding | None:
    unscored, lacking = mean(rows, "queue/unscored"), mean(rows, "queue/unscored_s")
    if lacking is not None and lacking >= MOSTLY * figures["time/wait"]:
        part = lacking / figures["time/wait"]
        text = f"{waits}, {part:.0%} of that for nothing but scores of rollouts that are finished; raise reward.workers"
        return Finding("bound by reward", text, {**figures, "queue/unscored_s": lacking})
    if unscored is None or unscored <= config.rollouts_per_step:
        return None
    text = f"{waits} and {unscored:.0f} finished rollouts wait for their score; raise reward.workers"
    return Finding("bound by reward", text, {**figures, "queue/unscored": unscored})


def _weights(rows: Sequence[Row], config: Config, waits: str, figures: Figures) -> Finding | None:
    stalled = _stall_share(rows)
    if stalled is not None and stalled >= STALLED:
        keep = "" if config.rollout.update_mode == "keep" else 'set rollout.update_mode = "keep", or '
        text = (
            f"{waits} while requests stand still {stalled:.0%} of the replicas' time for versions that are loaded; "
            f"{keep}raise learner.groups_per_step, so that versions are fewer"
        )
        return Finding("bound by weights", text, {**figures, "stall_share": stalled})
    idle, way = mean(rows, "rollout/idle_share"), _publication_latency(rows)
    if idle is None or idle < IDLE or way is None:
        return None
    # A replica that may start no more waits for the next version; a row is trained so many steps after that at most.
    steps = config.learner.max_staleness + 1
    part = way / (steps * figures["time/step"])
    if part < MOSTLY:
        return None
    text = (
        f"{waits} while replicas stand idle {idle:.0%} of theirs: a version takes {way:.2f} s to reach them, "
        f"{part:.0%} of {steps} steps; raise learner.max_staleness, or learner.groups_per_step: so versions are fewer"
    )
    return Finding("bound by weights", text, {**figures, "rollout/idle_share": idle, "way_s": way, "way_share": part})


def _stall_share(rows: Sequence[Row]) -> float | None:
    """Share of the replicas' time in which requests stood still for a version. None where no row says so."""
    updated = _products(rows, "weights/updates", "weights/stall_s")
    seconds = sum(_products(rows, "time/step", "rollout/replicas"))
    return sum(updated) / seconds if updated and seconds else None


def _products(rows: Sequence[Row], one: str, other: str) -> list[float]:
    """Of the two keys, in each row that has both."""
    found = [(values([row], one), values([row], other)) for row in rows]
    return [first[0] * second[0] for first, second in found if first and second]


def _publication_latency(rows: Sequence[Row]) -> float | None:
    """Seconds from the end of a step until a replica serves its version. None where no row says so."""
    parts = [mean(rows, f"weights/{key}") for key in ("seconds", "transfer_s", "load_s")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _admission(rows: Sequence[Row], config: Config, waits: str, figures: Figures) -> Finding | None:
    idle = mean(rows, "rollout/idle_share")
    if idle is None or idle < IDLE:
        return None
    text = (
        f"{waits} while replicas stand idle {idle:.0%} of theirs: they may not start more under "
        f"max_staleness = {config.learner.max_staleness}; raise learner.max_staleness or rollout.slots"
    )
    return Finding("bound by admission", text, {**figures, "rollout/idle_share": idle})


def _generation(rows: Sequence[Row], config: Config, waits: str, figures: Figures) -> Finding:
    idle = mean(rows, "rollout/idle_share")
    busy = "" if idle is None else f" and replicas are idle only {idle:.0%} of theirs"
    autoscaling = config.rollout.autoscaling
    number = "rollout.autoscaling.max_replicas" if autoscaling.enabled else "rollout.replicas"
    text = f"{waits}{busy}: generation is the slowest; raise {number}, rollout.threads or rollout.slots"
    return Finding("bound by generation", text, figures)
