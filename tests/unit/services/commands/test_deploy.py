"""`streamrl deploy`: what it writes where, and what it refuses."""

from pathlib import Path

import pytest
import yaml

from streamrl.services.cli.main import run_app

CONFIG = '[model]\npreset = "tiny-qwen3"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one in which it is called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def deploy(*arguments: str) -> int:
    return run_app(["deploy", *arguments])


@pytest.mark.parametrize(
    ("target", "file"), [("docker", "compose.yaml"), ("k8s", "chart/templates/job.yaml"), ("slurm", "run.sbatch")]
)
def test_it_names_what_it_writes(folder: Path, capsys: pytest.CaptureFixture[str], target: str, file: str) -> None:
    assert deploy(target, "run.toml", "--out", "out/here") == 0
    written = capsys.readouterr().out.splitlines()
    assert f"out/here/{file}" in written
    assert sorted(written) == sorted(
        str(path.relative_to(folder)) for path in (folder / "out").rglob("*") if path.is_file()
    )


def test_the_folder_that_a_container_sees_is_where_it_was_called(folder: Path) -> None:
    deploy("docker", "run.toml", "--out", "out/here")
    services = yaml.safe_load((folder / "out/here/compose.yaml").read_text())["services"]
    assert {"type": "bind", "source": "./../..", "target": "/streamrl"} in services["run"]["volumes"]


def test_again_it_writes_the_same(folder: Path) -> None:
    assert [deploy("slurm", "run.toml", "--out", "out") for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("name", ["notes.txt", "run.sbatch"])
def test_other_files_are_refused_unless_forced(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (folder / "out").mkdir()
    (folder / "out" / name).write_text("mine")
    assert deploy("slurm", "run.toml", "--out", "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"streamrl: out holds {name}, ")
    assert "--force" in line
    assert [path.name for path in (folder / "out").iterdir()] == [name]
    assert deploy("slurm", "run.toml", "--out", "out", "--force") == 0
    assert (folder / "out/notes.txt").exists() == (name == "notes.txt")


def test_a_file_in_the_folders_place_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy("slurm", "run.toml", "--out", "run.toml") == 2
    assert "run.toml is a file" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy("slurm", "run.toml", "--out", "run.toml/out") == 3
    assert "run.toml/out cannot be written" in capsys.readouterr().err


def test_a_configuration_that_cannot_be_deployed_is_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy("docker", "run.toml", "--out", "out", "--gateway.enabled", "true", "--gateway.port", "8000") == 2
    assert capsys.readouterr().err.startswith("streamrl: gateway.insecure_bind: ")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("image", ["", "my image", "Upper:1", "name:", "a:b:c"])
def test_what_is_no_image_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], image: str) -> None:
    assert deploy("k8s", "run.toml", "--out", "out", "--image", image) == 2
    assert f"--image {image!r} is no name of an image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        ("streamrl:1", "streamrl", "1"),
        ("registry.example:5000/team/streamrl", "registry.example:5000/team/streamrl", "latest"),
        ("registry.example:5000/team/streamrl:v2", "registry.example:5000/team/streamrl", "v2"),
    ],
)
def test_an_image_may_be_of_any_registry(folder: Path, image: str, repository: str, tag: str) -> None:
    assert deploy("k8s", "run.toml", "--out", "out", "--image", image) == 0
    values = yaml.safe_load((folder / "out/chart/values.yaml").read_text())
    assert (values["image"]["repository"], values["image"]["tag"]) == (repository, tag)


def test_a_folder_of_any_name_is_quoted(folder: Path) -> None:
    assert deploy("slurm", "run.toml", "--out", "my files/$x") == 0
    assert "config='my files/$x/run.toml'\n" in (folder / "my files/$x/run.sbatch").read_text()
