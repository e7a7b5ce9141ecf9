"""`streamrl check`: all that is looked at before a run, in the order in which it costs, and what is told of it."""

from streamrl.config import Config
from streamrl.config.rules.sandbox import runs_programs
from streamrl.services.commands.data import data_lines
from streamrl.services.commands.model_facts import model_lines
from streamrl.services.commands.row_products import product_lines
from streamrl.services.launch.preflight import preflight
from streamrl.services.storage.place import require_stores


def check_lines(config: Config) -> list[str]:
    """Look at stores, data, code and models, as `up` does, and at this machine. Raises ConfigError and ResourceError
    for what a run would fail over, and what `preflight` raises for code that ends or blocks its process."""
    stores = require_stores(config)
    data = data_lines(config)  # prepared, before the rest of it is looked at
    preflight(config)
    return [*model_lines(config), *product_lines(config), *data, *_sandbox_lines(config), *stores]


def _sandbox_lines(config: Config) -> list[str]:
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
