"""The rules about `[rollout.autoscaling]`. Pure: a configuration in, problems out, as in `rules`."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.rollout import AutoscalingConfig
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_REPLICAS = "rollout.replicas"
_TABLE = "rollout.autoscaling"
_MIN, _MAX = f"{_TABLE}.min_replicas", f"{_TABLE}.max_replicas"
_WITHOUT_MAX = ("min_replicas", "target_ongoing_requests", "upscale_delay_s", "downscale_delay_s")


def autoscaling_is_on(config: Config) -> Iterator[Problem]:
    """Without the one key that switches it on the others say nothing."""
    given, default = config.rollout.autoscaling, AutoscalingConfig()
    if given.enabled:
        return
    for name in _WITHOUT_MAX:
        if (value := getattr(given, name)) != getattr(default, name):
            what = f"there is no autoscaling without max_replicas; set {_MAX}, or leave this key out"
            yield Problem(key=f"{_TABLE}.{name}", what=what, given=quoted(value), involves=(_MAX,))


def replicas_between_the_limits(config: Config) -> Iterator[Problem]:
    replicas, given = config.rollout.replicas, config.rollout.autoscaling
    if given.max_replicas is None:
        return
    least, most = given.min_replicas, given.max_replicas
    if most < least:
        what = f"fewer than min_replicas = {least}; set at least that"
        yield Problem(key=_MAX, what=what, given=str(most), involves=(_MIN,))
    elif not least <= replicas <= most:
        what = f"autoscaling keeps the number from {least} to {most}; set one of these, or other limits"
        yield Problem(key=_REPLICAS, what=what, given=str(replicas), involves=(_MIN, _MAX))


def replicas_that_can_be_scaled(config: Config) -> Iterator[Problem]:
    """Where another number could not be, or who waits for whom says nothing."""
    most, endpoint = config.rollout.autoscaling.max_replicas, config.rollout.server.endpoint
    if most is None:
        return
    if endpoint is not None and most > 1:
        what = (
            "the server at rollout.server.endpoint is for one replica alone; leave this key out, or the endpoint, so "
            "that each replica starts a server of its own"
        )
        yield Problem(key=_MAX, what=what, given=str(most), involves=("rollout.server.endpoint",))
    if config.learner.max_staleness == 0:
        what = (
            "with learner.max_staleness = 0 learner and replicas take turns, and each waits for the other however many "
            "there are; allow a staleness above 0, or leave this key out and set rollout.replicas"
        )
        yield Problem(key=_MAX, what=what, given=str(most), involves=("learner.max_staleness",))


def targets_need_clients(config: Config) -> Iterator[Problem]:
    target = config.rollout.autoscaling.target_ongoing_requests
    if target != AutoscalingConfig().target_ongoing_requests and not config.gateway.enabled:
        what = "clients send requests through the gateway, which this run has not; set gateway.enabled = true"
        key = f"{_TABLE}.target_ongoing_requests"
        yield Problem(key=key, what=what, given=quoted(target), involves=("gateway.enabled",))


AUTOSCALING_RULES = (
    autoscaling_is_on,
    replicas_between_the_limits,
    replicas_that_can_be_scaled,
    targets_need_clients,
)
