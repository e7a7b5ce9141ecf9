"""How many faults a fault test tries, and from which seed.

`FAULT_SCALE=1` tries the full numbers; the default is a short form of them. `SEED` replays a run that failed.
"""

import os

SCALE = float(os.environ.get("FAULT_SCALE", "0.02"))
SEED = int(os.environ.get("SEED", "0")) or int.from_bytes(os.urandom(4), "little") | 1


def scaled(full: int) -> int:
    """The number to try where the full number is `full`."""
    return max(1, round(full * SCALE))


def replay(place: int) -> str:
    """What to say of a failure at the `place`-th fault."""
    return f"SEED={SEED} FAULT_SCALE={SCALE}: fault {place}"
