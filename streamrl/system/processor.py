"""What processor this is, in a few words: the kernels of a library follow from it, and the last bits of its sums.

And MKL's strict reproducible mode, asked for in the environment of a process before it computes. In it a row of a
product has the same bits in any company, a single row too, and few products take longer. Only Intel's processors with
AVX2 or AVX-512 have it; elsewhere the variable changes nothing. MKL reads it once, when it computes for the first time.
"""

import platform
from collections.abc import Mapping
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
VARIABLE, STRICT = "MKL_CBWR", "AUTO,STRICT"


def processor(cpuinfo: Path = CPUINFO) -> str:
    """As `AMD EPYC (AuthenticAMD, family 26, model 2)`; what the platform says where Linux says nothing."""
    facts = _facts(cpuinfo)
    if "cpu family" in facts:
        vendor, family, model = (facts.get(name, "?") for name in ("vendor_id", "cpu family", "model"))
        return f"{facts.get('model name', platform.machine())} ({vendor}, family {family}, model {model})"
    if "CPU part" in facts:
        return f"{platform.machine()} (implementer {facts.get('CPU implementer', '?')}, part {facts['CPU part']})"
    return platform.processor() or platform.machine()


def vendor_and_flags(cpuinfo: Path = CPUINFO) -> tuple[str, frozenset[str]]:
    """As Linux names them on x86: `AuthenticAMD`, and `avx2` among others; nothing elsewhere."""
    facts = _facts(cpuinfo)
    return facts.get("vendor_id", ""), frozenset(facts.get("flags", "").split())


def strict_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to an environment so that MKL is strict: nothing where the user has chosen a mode himself."""
    return {} if VARIABLE in environment else {VARIABLE: STRICT}


def is_strict(environment: Mapping[str, str]) -> bool:
    """Whether strict mode is asked for there."""
    return "STRICT" in environment.get(VARIABLE, "").upper()


def _facts(cpuinfo: Path) -> dict[str, str]:
    """Of the first core."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
