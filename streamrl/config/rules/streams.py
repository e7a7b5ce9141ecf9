"""The rules about streams of prompts, `[gateway]`. Pure: a configuration in, problems out, as in `rules`."""

import math
import re
from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.schema.streams import STREAM_NAME, TASK
from streamrl.config.toml_text import dotted, quoted

_WEIGHTS, _PRIORITIES, _ENABLED = "gateway.stream_weights", "gateway.stream_priorities", "gateway.enabled"


def streams_have_a_door(config: Config) -> Iterator[Problem]:
    gateway = config.gateway
    for key, given in ((_WEIGHTS, gateway.stream_weights), (_PRIORITIES, gateway.stream_priorities)):
        if given is not None and not gateway.enabled:
            what = f"prompts are submitted through the gateway, which this run has not; set {_ENABLED} = true"
            yield Problem(key=key, what=what, given=quoted(given), involves=(_ENABLED,))


def streams_have_plain_names(config: Config) -> Iterator[Problem]:
    gateway = config.gateway
    for key, given in ((_WEIGHTS, gateway.stream_weights), (_PRIORITIES, gateway.stream_priorities)):
        for name in given or {}:
            if not re.fullmatch(STREAM_NAME, name):
                what = "a stream is named by 1 to 64 letters, digits and any of '_.-', the first one none of '.-'"
                yield Problem(key=f"{key}.{dotted([name])}", what=what, given=quoted(name))


def streams_weigh_something(config: Config) -> Iterator[Problem]:
    for name, weight in (config.gateway.stream_weights or {}).items():
        if math.isfinite(weight) and (weight > 0 or (weight == 0 and name == TASK)):
            continue
        what = f'a stream weighs a finite number over 0; only "{TASK}", the run\'s own data, may have 0'
        yield Problem(key=f"{_WEIGHTS}.{dotted([name])}", what=what, given=quoted(weight))


STREAM_RULES = (streams_have_a_door, streams_have_plain_names, streams_weigh_something)
