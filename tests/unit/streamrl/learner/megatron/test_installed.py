"""A package that is missing, of another version, or without a GPU: one clear error."""

import sys
from pathlib import Path

import pytest
import torch
from support.repository import ROOT

from streamrl.errors import ConfigError
from streamrl.learner.megatron.installed import VERSION, require_megatron

CPU = torch.device("cpu")


def install(folder: Path, version: str) -> None:
    """What pip leaves of a package, without the package."""
    facts = folder / f"megatron_core-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {version}\n")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    said = rf"megatron-core is not installed; pip install 'megatron-core=={VERSION}' \(the extra megatron\)"
    with pytest.raises(ConfigError, match=said):
        require_megatron(CPU)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "0.15.3")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"megatron-core 0.15.3 is installed, not {VERSION}; pip install"):
        require_megatron(CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_machine_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, VERSION)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r'computes on GPUs; set learner.device = "cuda".*no GPU here'):
        require_megatron(CPU)


def test_the_version_is_the_one_that_is_installed_by_name() -> None:
    for name in ("pyproject.toml", "Makefile"):
        assert f"megatron-core=={VERSION}" in (ROOT / name).read_text(), name
