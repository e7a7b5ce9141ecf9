"""The examples of docs/client.md do what the page says: each is run as it stands, against a live gateway."""

import asyncio
import re
import sys
from pathlib import Path

import msgspec
import pytest
from submitted_prompts import gateway_of

from streamrl.config import load

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
MODEL = '[model]\npreset = "tiny-qwen3"\n'


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


async def said(block: str, folder: Path) -> str:
    """What an example prints, run by a user whose run is `runs/quickstart`."""
    async with gateway_of(folder, owned=True) as gateway:
        launch = gateway.run.record.launch
        assert launch is not None
        gateway.run.start_launch(msgspec.structs.replace(launch, gateway=gateway.url))
        user = folder / "user"
        (user / "runs").mkdir(parents=True)
        (user / "runs/quickstart").symlink_to(gateway.run.path)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", block),
            cwd=user,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    return out.decode()


async def test_prompts_are_streamed(tmp_path: Path) -> None:
    lines = (await said(blocks("python")[0], tmp_path)).splitlines()
    assert len(lines) == 10
    assert all("Version(incarnation=0, step=1)" in line for line in lines)


async def test_a_script_submits_and_waits(tmp_path: Path) -> None:
    told = (await said(blocks("python")[1], tmp_path)).strip()
    assert re.fullmatch(r"\[(\[[01., ]+\](, )?){4}\]", told), told


async def test_a_run_is_steered(tmp_path: Path) -> None:
    told = await said(blocks("python")[2], tmp_path)
    assert told == "{'rollout': 2, 'before': 1}\nstep 1 is published, policy.safetensors has version 0.1\n"


def test_no_example_is_left_out() -> None:
    assert len(blocks("python")) == 3


@pytest.mark.parametrize("number", range(len(blocks("toml"))))
def test_what_is_configured_is_a_configuration(number: int, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(MODEL + blocks("toml")[number])
    assert load(path).gateway.enabled
