"""MKL's strict reproducible mode, asked for in the environment of a process before it computes.

In it a row of a product has the same bits in any company, a single row too, and few products take longer. Only Intel's
processors with AVX2 or AVX-512 have it; elsewhere the variable changes nothing. MKL reads it once, when it computes for
the first time.
"""

from collections.abc import Mapping

VARIABLE, STRICT = "MKL_CBWR", "AUTO,STRICT"


def strict_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to an environment so that MKL is strict: nothing where the user has chosen a mode himself."""
    return {} if VARIABLE in environment else {VARIABLE: STRICT}


def is_strict(environment: Mapping[str, str]) -> bool:
    """Whether strict mode is asked for there."""
    return "STRICT" in environment.get(VARIABLE, "").upper()
