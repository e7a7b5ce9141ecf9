"""What a tracker lacks is said before a run starts; what it needs of the environment reaches it, and nothing else."""

from pathlib import Path

import pytest

from streamrl.config.schema.observe import ObserveConfig, TrackerName
from streamrl.observability.trackers.built_in import TRACKERS
from streamrl.observability.trackers.requirements import REQUIREMENTS, faults, variables_for


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders in the place of the packages."""
    for requirement in REQUIREMENTS.values():
        place = tmp_path / "packages" / Path(*requirement.module.split("."))
        place.mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "packages")])
    for name in ("tensorboard", "opentelemetry"):
        for module in [known for known in __import__("sys").modules if known.partition(".")[0] == name]:
            monkeypatch.delitem(__import__("sys").modules, module)


def found(name: str, home: Path, **environment: str) -> list[str]:
    return list(faults([name], environment, home))


def test_every_tracker_of_the_schema_is_built_and_has_its_requirements() -> None:
    assert set(TRACKERS) == set(REQUIREMENTS) == set(TrackerName.__args__)


def test_the_old_key_of_tensorboard_names_the_tracker_once() -> None:
    assert ObserveConfig(tensorboard=True).all_trackers == ("tensorboard",)
    assert ObserveConfig(tensorboard=True, trackers=("tensorboard", "wandb")).all_trackers == ("tensorboard", "wandb")


def test_a_package_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [])
    (fault,) = found("mlflow", tmp_path)
    assert (
        fault == "mlflow: its package is not installed; run `pip install 'streamrl[mlflow]'`, or leave the tracker out"
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["mlflow", "trackio", "tensorboard", "otel"])
def test_what_keeps_its_runs_here_needs_no_key(name: str, tmp_path: Path) -> None:
    assert found(name, tmp_path) == []


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "prefix"), [("wandb", "WANDB"), ("swanlab", "SWANLAB")])
def test_a_service_without_a_key_is_told_with_the_ways_out(name: str, prefix: str, tmp_path: Path) -> None:
    (fault,) = found(name, tmp_path)
    for way_out in (f"{prefix}_API_KEY", f"`{name} login`", f"{prefix}_MODE=offline"):
        assert way_out in fault
    assert found(name, tmp_path, **{f"{prefix}_API_KEY": "k"}) == []
    assert found(name, tmp_path, **{f"{prefix}_MODE": "offline"}) == []


@pytest.mark.usefixtures("installed")
def test_a_login_of_wandb_counts_for_its_own_host_alone(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password abc\n")
    assert found("wandb", tmp_path) == []
    (fault,) = found("wandb", tmp_path, WANDB_BASE_URL="https://wandb.example.org")
    assert "no key" in fault
    (tmp_path / ".netrc").write_text("machine\n")
    (fault,) = found("wandb", tmp_path)
    assert "no key" in fault


@pytest.mark.usefixtures("installed")
def test_a_space_without_a_token_is_told(tmp_path: Path) -> None:
    (fault,) = found("trackio", tmp_path, TRACKIO_SPACE_ID="me/space")
    assert "HF_TOKEN" in fault
    assert found("trackio", tmp_path, TRACKIO_SPACE_ID="me/space", HF_TOKEN="t") == []


def test_a_tracker_gets_its_own_keys_and_no_other_tracker_does() -> None:
    environment = {"WANDB_API_KEY": "w", "SWANLAB_API_KEY": "s", "HTTPS_PROXY": "p", "MY_SECRET": "m", "PATH": "/bin"}
    assert variables_for("wandb", environment) == {"WANDB_API_KEY": "w", "HTTPS_PROXY": "p"}
    assert variables_for("tensorboard", environment) == {"HTTPS_PROXY": "p"}
