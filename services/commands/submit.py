"""`streamrl submit`: prompts from a file to a live run, and what became of them as lines."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
import xxhash

from streamrl.client import connect
from streamrl.errors import DroppedError, RequestError

STDIN = "-"


def read_prompts(lines: Iterable[str], source: str) -> Iterator[dict[str, Any]]:
    """The prompts of a file, a JSON object a line. A prompt without a key gets one that follows from its line and from
    how many equal ones came before, so the same file submitted again is the same prompts.

    Raises RequestError that names the line.
    """
    seen: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            ask = json.loads(line)
        except ValueError as error:
            raise RequestError(f"{source}:{number}: not JSON: {error}") from error
        if not isinstance(ask, Mapping) or not isinstance(ask.get("prompt"), str):
            raise RequestError(f"{source}:{number}: an object with a text under 'prompt' is a prompt; given {line:.80}")
        digest = xxhash.xxh3_128_hexdigest(json.dumps(ask, sort_keys=True).encode())
        seen[digest] += 1
        yield {"key": f"{digest}.{seen[digest]}", **ask}


def submit_file(target: str, source: str, stream: str, tell: Callable[[str], None]) -> tuple[int, int]:
    """Submit all prompts of a file ("-": of standard input, as they come), and tell a line of each as it ends. Returns
    how many (finished, were dropped). Raises RequestError, ComponentError, OSError."""
    if source == STDIN:
        return asyncio.run(_submit(target, read_prompts(sys.stdin, "standard input"), stream, tell))
    with open(source) as file:
        for _ in read_prompts(file, source):
            pass  # nothing is submitted of a file that has a fault
        file.seek(0)
        return asyncio.run(_submit(target, read_prompts(file, source), stream, tell))


async def _submit(
    target: str, asks: Iterator[dict[str, Any]], stream: str, tell: Callable[[str], None]
) -> tuple[int, int]:
    ended: Counter[bool] = Counter()
    async with connect(target) as client, aclosing(client.stream(_read(asks), stream=stream, dropped=True)) as results:
        async for one in results:
            ended[isinstance(one, DroppedError)] += 1
            told = (
                {"key": one.key, "dropped": one.reason} if isinstance(one, DroppedError) else msgspec.to_builtins(one)
            )
            tell(json.dumps(told))
    return ended[False], ended[True]


async def _read(asks: Iterator[dict[str, Any]]) -> Any:
    """Line by line, in a thread: standard input may be slow."""
    while (ask := await asyncio.to_thread(next, asks, None)) is not None:
        yield ask
