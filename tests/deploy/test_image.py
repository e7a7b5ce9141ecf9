"""The Dockerfiles, by hadolint and by what an image of streamrl promises."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from support.deploy.checked import program
from support.deploy.sample_kits import DEPLOY
from support.repository import ROOT

FILES = ("Dockerfile.cpu", "Dockerfile.cuda")


def instructions(name: str) -> list[tuple[str, str]]:
    """Each with what follows it, on one line."""
    text = (DEPLOY / "docker" / name).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for line in joined.splitlines() if line for word, _, rest in [line.partition(" ")]]


def stages(name: str) -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions(name):
        if word == "FROM":
            stage = found.setdefault(rest.rpartition(" AS ")[2], [])
        elif found:
            stage.append((word, rest))
    return found


@pytest.mark.parametrize("name", FILES)
def test_hadolint_finds_no_fault(name: str) -> None:
    command = [program("hadolint"), "--format", "json", "--failure-threshold", "style", DEPLOY / "docker" / name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_hadolint_would_find_one(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:latest\nRUN sudo apt-get install -y curl\n")
    command = [program("hadolint"), "--format", "json", tmp_path / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert {"DL3007", "DL3004"} <= {one["code"] for one in json.loads(done.stdout)}


@pytest.mark.parametrize("name", FILES)
def test_the_image_is_of_a_user_has_a_health_check_and_leaves_what_built_it(name: str) -> None:
    found = stages(name)
    assert {"build", "engine-none", "engine-vllm", "engine-sglang", "engine", "streamrl"} <= set(found)
    last = found["streamrl"]
    words = dict(last)
    assert words["USER"] == "10001:10001"
    assert words["HEALTHCHECK"].endswith('CMD ["streamrl", "status", "--live"]')
    assert words["ENTRYPOINT"] == '["streamrl"]'
    assert words["STOPSIGNAL"] == "SIGTERM"
    copied = [rest for word, rest in last if word == "COPY"]
    assert copied == ["--from=build /opt/streamrl /opt/streamrl", "--from=engine /opt/engines /opt/engines"]


@pytest.mark.parametrize("name", FILES)
def test_a_server_has_an_environment_of_its_own_in_the_versions_that_are_tested(name: str) -> None:
    found = stages(name)
    (vllm,) = (rest for word, rest in found["engine-vllm"] if word == "RUN")
    (sglang,) = (rest for word, rest in found["engine-sglang"] if word == "RUN")
    assert "python3 -m venv /opt/engines/vllm" in vllm
    assert "python3 -m venv /opt/engines/sglang" in sglang
    makefile = (ROOT / "Makefile").read_text()
    for requirement in (*re.findall(r"vllm(?:-cpu)?==[\w.*]+", vllm), *re.findall(r"sglang==[\w.*]+", sglang)):
        assert requirement in makefile


def test_what_the_image_is_built_from_is_all_that_the_package_is() -> None:
    taken = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    links = {path.name for path in (ROOT / "streamrl").iterdir() if path.is_symlink()}
    assert {"streamrl", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md", *links} <= taken
    assert all((ROOT / name).exists() for name in taken)
