"""Whole runs of families that the torch engine has no fast way for: windows, caps, recurrences, and of experts;
trained and exported."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from support.data.chat_model import write_chat_tokenizer
from support.engines.family_models import family_model

from streamrl.config import load
from streamrl.config.known import EXPERT_TYPES
from streamrl.models.load import load_model
from streamrl.reference import Reference

pytestmark = [pytest.mark.ray, pytest.mark.long]

STEPS = 4


def write_model(folder: Path, kind: str, changes: Mapping[str, Any]) -> Path:
    tokens = write_chat_tokenizer(folder, None)
    model = family_model(kind, vocab_size=128, **changes)
    model.config.eos_token_id = model.generation_config.eos_token_id = 2
    model.save_pretrained(tokens)
    return folder


def trained(
    train: Any, folder: Path, kind: str, *more: str, name: str = "", changes: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """changes: of the model's configuration."""
    model = write_model(folder / kind, kind, changes)
    run = train(
        name or kind, "--model.preset", "none", "--model.path", str(model), "--learner.steps", str(STEPS), *more
    )
    assert run.code == 0, run.output
    assert kind in EXPERT_TYPES or f"the torch engine runs {kind} by transformers' own modules" in run.output
    export = load_model(run.folder / "export", "float32")
    start = load_model(model, "float32")
    assert any(not torch.equal(a, b) for a, b in zip(export.parameters(), start.parameters(), strict=True))
    return run


@pytest.mark.parametrize("kind", ["gemma2", "qwen3_5_text"])
def test_invariant_4_windows_caps_and_recurrences_train_to_the_bits_of_the_synchronous_loop(
    train: Any, user_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    synchronous = ("--learner.max_staleness", "0", "--rollout.update_mode", "drain", "--rollout.deterministic", "true")
    run = trained(train, tmp_path, kind, *synchronous)
    monkeypatch.syspath_prepend(user_folder)
    records = list(Reference(load(run.folder / "config.toml")).steps())
    assert [record.digest for record in records] == [row["weights/digest"] for row in run.metrics()]
    assert all(abs(row["mismatch/kl"]) < 1e-6 for row in run.metrics())


def test_experts_train_in_a_stream_with_policies_of_other_versions(train: Any, tmp_path: Path) -> None:
    run = trained(train, tmp_path, "qwen3_moe", "--rollout.deterministic", "false")
    first, *others = run.metrics()
    # The first step is of the version that sampled it; later ones are off by what was learned meanwhile.
    assert abs(first["mismatch/kl"]) < 1e-6
    assert len(others) == STEPS - 1
    assert len({row["weights/digest"] for row in (first, *others)}) == STEPS


def test_invariant_4_experts_train_to_the_bits_of_the_synchronous_loop_and_replay_all_routes(
    train: Any, user_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronous = ("--learner.max_staleness", "0", "--rollout.update_mode", "drain", "--rollout.deterministic", "true")
    replay = ("--learner.router_replay", "true", "--learner.router_aux_loss_coef", "0.01")
    only_experts = {"mlp_only_layers": []}
    run = trained(train, tmp_path, "qwen3_moe", *synchronous, *replay, name="routed", changes=only_experts)
    monkeypatch.syspath_prepend(user_folder)
    records = list(Reference(load(run.folder / "config.toml")).steps())
    assert [record.digest for record in records] == [row["weights/digest"] for row in run.metrics()]
    for row in run.metrics():
        assert abs(row["mismatch/kl"]) < 1e-6
        assert row["router/replayed_share"] == 1.0
        assert row["router/load_max_over_mean"] >= 1.0
