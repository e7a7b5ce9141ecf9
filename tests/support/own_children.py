"""What a test has left running."""

import psutil


def own_children() -> list[psutil.Process]:
    """All processes below this one, but for those of multiprocessing, which live as long as it: ranks of other tests
    are forked from them."""
    return [one for one in psutil.Process().children(recursive=True) if not _of_multiprocessing(one)]


def _of_multiprocessing(process: psutil.Process) -> bool:
    try:
        return "from multiprocessing." in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
