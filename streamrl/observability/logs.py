"""A component's log: JSON lines in `logs/<component>.log`, from structlog and from the standard library
alike.

Guarantees: each record is one line, in the file when the call returns, with UTC time, `time_ns`, level,
component and pid; an uncaught exception of any thread is in it; values under keys that name a secret, and
bearer tokens in texts, are not; the file and its one predecessor stay below a bound in bytes. It does not
know what is worth logging, and it leaves stdout and stderr alone.
"""

import json
import logging
import logging.handlers
import math
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import structlog

MAX_BYTES = 16 * 2**20
"""Of one log file. The one before it is kept as `<component>.log.1`."""

SECRET_KEYS = ("token", "key", "authorization", "password", "secret")
"""A key is secret when its last word is one of these: `api_key` is, `token_ids` and `tokens` are not."""

REDACTED = "[redacted]"
LAST_WORD = re.compile(r"[A-Za-z0-9]+$")
BEARER = re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]+")


class ComponentHandler(logging.handlers.RotatingFileHandler):
    """The handler that `configure` installs and `release` finds again; it also takes uncaught exceptions."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, maxBytes=max_bytes // 2, backupCount=1, encoding="utf-8")
        self._hooks = (sys.excepthook, threading.excepthook)

    def hook(self) -> None:
        """Log what nobody caught, then let the hooks of before have it."""
        before_main, before_thread = self._hooks

        def main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if not issubclass(kind, KeyboardInterrupt):
                logging.getLogger("uncaught").critical("uncaught exception", exc_info=(kind, error, trace))
            before_main(kind, error, trace)

        def thread(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is not None:
                info = (args.exc_type, args.exc_value, args.exc_traceback)
                logging.getLogger("uncaught").critical("uncaught exception in a thread", exc_info=info)
            before_thread(args)

        sys.excepthook, threading.excepthook = main, thread

    def unhook(self) -> None:
        sys.excepthook, threading.excepthook = self._hooks


def configure(
    component: str, folder: Path, level: int = logging.INFO, max_bytes: int = MAX_BYTES
) -> structlog.stdlib.BoundLogger:
    """Send this process's log records to `folder/<component>.log` and return its logger.

    `max_bytes` bounds the file and its predecessor together. Called again, it replaces what it set up before.
    """
    release()
    folder.mkdir(parents=True, exist_ok=True)
    handler = ComponentHandler(folder / f"{component}.log", max_bytes)
    chain = _chain(component)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=chain,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _redact, _render],
        )
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    handler.hook()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *chain,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger(component))


def release() -> None:
    """Undo `configure`: close the file, give the exception hooks back. Nothing happens without it."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, ComponentHandler)]:
        root.removeHandler(handler)
        handler.unhook()
        handler.close()
    structlog.reset_defaults()


def _chain(component: str) -> list[structlog.typing.Processor]:
    def stamp(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["component"], event["pid"], event["time_ns"] = component, os.getpid(), time.time_ns()
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        stamp,
    ]


def _redact(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return cast(MutableMapping[str, Any], without_secrets(event))


def without_secrets(value: object) -> object:
    """The value as plain JSON without secrets. What JSON has no word for becomes text: no record is lost."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): REDACTED if _is_secret(key) else without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(inner) for inner in value]
    return BEARER.sub(rf"\1 {REDACTED}", value if isinstance(value, str) else repr(value))


def _is_secret(key: object) -> bool:
    word = LAST_WORD.search(str(key))
    return word is not None and word.group().lower() in SECRET_KEYS


def _render(_: object, __: str, event: MutableMapping[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))
