"""The examples of a page of the documentation, run as they stand by a user whose run is `runs/quickstart`."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
from support.gateway.local_gateway import LocalGateway
from support.gateway.submitted_prompts import gateway_of
from support.repository import ROOT

DOCS = ROOT / "docs"


class Page:
    """One page, by its name."""

    def __init__(self, name: str) -> None:
        self._text = (DOCS / name).read_text()

    def blocks(self, language: str) -> list[str]:
        """What is fenced as of a language."""
        return re.findall(rf"^```{language}\n(.*?)^```$", self._text, re.DOTALL | re.MULTILINE)

    def commands(self) -> list[str]:
        """What is to be typed in a shell, without what it answers."""
        indented = re.findall(r"^\n((?:    .*\n)+)$", self._text, re.MULTILINE)
        typed = [re.sub(r"^    \{.*\n", "", block, flags=re.MULTILINE) for block in indented]
        return [block for block in typed if block.split()[0] in ("curl", "streamrl")]


Opens = Callable[..., AbstractAsyncContextManager[LocalGateway]]


async def said(program: str, folder: Path, opens: Opens = gateway_of) -> str:
    """What a program in Python prints. opens: a gateway in a folder."""
    return await _printed((sys.executable, "-c", program), folder, opens)


async def typed(command: str, folder: Path) -> str:
    """What a command prints in a shell whose path has `streamrl`, and whose folder has prompts."""
    user = folder / "user"
    user.mkdir()
    prompts = [(f"{number}+1=", {"answer": str(number + 1)}) for number in range(3)]
    written = [{"prompt": prompt, **payload} for prompt, payload in prompts]
    on_the_wire = [{"key": prompt, "prompt": prompt, "payload": payload} for prompt, payload in prompts]
    for name, lines in (("prompts.jsonl", written), ("lines.jsonl", on_the_wire)):
        (user / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return await _printed(("bash", "-euo", "pipefail", "-c", command), folder)


async def _printed(command: tuple[str, ...], folder: Path, opens: Opens = gateway_of) -> str:
    async with opens(folder, owned=True) as gateway:
        launch = gateway.run.record.launch
        assert launch is not None
        gateway.run.start_launch(msgspec.structs.replace(launch, gateway=gateway.url))
        user = folder / "user"
        (user / "runs").mkdir(parents=True, exist_ok=True)
        (user / "runs/quickstart").symlink_to(gateway.run.path)
        process = await asyncio.create_subprocess_exec(
            *(_of(gateway, word) for word in command),
            cwd=user,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, out.decode() + err.decode()
    return out.decode()


def _of(gateway: LocalGateway, word: str) -> str:
    """With the address and the name of this run."""
    name = gateway.run.name
    word = word.replace("http://127.0.0.1:8000", gateway.url).replace('"model": "quickstart"', f'"model": "{name}"')
    return word.replace('model="quickstart"', f'model="{name}"')
