"""Models of many families: loaded from a folder, exported byte for byte, and read by a check without loading them."""

from pathlib import Path

import pytest
import torch
from support.data.chat_model import write_chat_tokenizer
from support.engines.family_models import FAMILIES, family_model

from streamrl.config.estimates.model_facts import read_folder
from streamrl.models.export import export_hf
from streamrl.models.load import load_model


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_is_exported_byte_for_byte_as_it_was_loaded(kind: str, shards: int, tmp_path: Path) -> None:
    model, folder = family_model(kind), tmp_path / "model"
    total = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(folder, max_shard_size=2 * total if shards == 1 else total // shards)
    write_chat_tokenizer(folder)
    loaded = load_model(folder, "float32")
    for (name, ours), (_, theirs) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    export_hf(loaded.named_parameters(), folder, tmp_path / "one", shard_bytes=2**40)
    again = load_model(tmp_path / "one", "float32")
    for (name, ours), (_, theirs) in zip(again.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert torch.equal(ours, theirs), name
    if shards == 1:
        assert (tmp_path / "one" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_check_reads_what_it_needs_without_loading(kind: str, tmp_path: Path) -> None:
    model = family_model(kind, vocab_size=128)  # as many as the tokenizer has, and some more
    model.save_pretrained(tmp_path)
    write_chat_tokenizer(tmp_path)
    facts, problems = read_folder(tmp_path)
    assert problems == []
    assert facts is not None
    assert (facts.model_type, facts.context) == (kind, 256)
    buffers = sum(one.numel() for name, one in model.named_buffers() if name.endswith("e_score_correction_bias"))
    assert facts.num_parameters == sum(one.numel() for one in model.parameters()) + buffers
