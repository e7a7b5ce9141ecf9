"""Where a configuration's programs run, and what that place gives."""

from streamrl.config import Config
from streamrl.config.rules.sandbox import runs_programs


def sandbox_lines(config: Config) -> list[str]:
    """Try the sandbox out. [] where nothing runs in it. Raises ConfigError where this machine has none."""
    if not runs_programs(config):
        return []
    # Here and not above: most checks need none of it.
    from streamrl.sandbox.sandbox import describe, make_sandbox

    sandbox = make_sandbox(config.sandbox)
    try:
        return list(describe(sandbox.start(), sandbox.limits))
    finally:
        sandbox.close()
