"""How a part of the run is seen from outside: its log file, its spans on the common time line, and its stacks when
somebody asks for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streamrl.config import Config
from streamrl.config.estimates.log_budget import log_shares
from streamrl.observability.chrome_trace import merge_traces
from streamrl.observability.logs import configure
from streamrl.observability.timeline import TraceWriter
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import STACKS_FOLDER, TRACE_FOLDER
from streamrl.system.stacks import answer

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


class Observer:
    """Log and spans of one component, in one process, which shows its stacks from now on (`streamrl.system.stacks`).

    Example:
        observer = Observer(run, config, "reward")
        observer.log.info("started", children=2)
        with observer.span("score"):
            ...
    """

    def __init__(self, run: RunFolder, config: Config, component: str) -> None:
        shares = log_shares(config)
        answer(component, run.path / STACKS_FOLDER)
        self.log: BoundLogger = configure(component, run.logs_path, max_bytes=shares.log)
        path = run.path / TRACE_FOLDER / f"{component}.jsonl"
        self.trace = TraceWriter(path, component, shares.spans) if config.observe.trace else None

    @contextmanager
    def span(self, name: str, track: str = "main") -> Iterator[None]:
        """What the block takes, on the time line; nothing when traces are off."""
        if self.trace is None:
            yield
            return
        with self.trace.span(name, track):
            yield

    def close(self) -> None:
        if self.trace is not None:
            self.trace.close()


def write_trace(run: RunFolder) -> Path:
    """Merge the spans of all components into one Chrome trace, which Perfetto opens."""
    merge_traces(sorted((run.path / TRACE_FOLDER).glob("*.jsonl")), run.trace_path)
    return run.trace_path
