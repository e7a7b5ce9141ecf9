"""What processor this is, in a few words: the kernels of a library follow from it, and the last bits of its sums."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


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


def _facts(cpuinfo: Path) -> dict[str, str]:
    """Of the first core."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
