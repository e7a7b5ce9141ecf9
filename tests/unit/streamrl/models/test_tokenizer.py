"""Text to ids and back with the light library, and that it agrees with the heavy one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.config.estimates.model_presets import PRESETS, find_preset
from streamrl.errors import ConfigError
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer, write_character_tokenizer

PRESET = PRESETS["tiny-qwen3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_character_tokenizer(PRESET.characters, PRESET.max_context, path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return load_tokenizer(folder)


def change(folder: Path, file: str, **values: object) -> None:
    """Set keys of a JSON file; None removes one."""
    path = folder / file
    content = {**(json.loads(path.read_text()) if path.exists() else {}), **values}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_a_prompt_is_bos_and_one_id_for_each_character(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("37+85=")
    assert ids.dtype == np.int32
    assert ids.tolist() == [1, 6, 10, 13, 11, 8, 16]
    assert tokenizer.encode("37", add_special_tokens=False).tolist() == [6, 10]
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids) == (PRESET.vocab_size, (2,))
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (1, 0)


texts = st.text(alphabet=PRESET.characters, max_size=20)


@settings(deadline=None)
@given(rows=st.lists(texts, max_size=8))
def test_any_text_of_the_vocabulary_comes_back(tokenizer: TextTokenizer, rows: list[str]) -> None:
    ids = [np.append(row, 2).astype(np.int32) for row in tokenizer.encode_batch(rows)]
    offsets = np.cumsum([0, *map(len, ids)])
    flat = np.concatenate([np.zeros(0, np.int32), *ids])
    assert tokenizer.decode_batch(flat, offsets) == rows
    assert [tokenizer.decode(row) for row in ids] == rows


@pytest.mark.parametrize("text", ["3a", "3\n", "\u00e9"])
def test_a_character_that_is_not_in_the_vocabulary_is_never_another_token(tokenizer: TextTokenizer, text: str) -> None:
    with pytest.raises(ConfigError, match="cannot encode"):
        tokenizer.encode(text)


def test_end_tokens_are_gathered_from_all_three_places(folder: Path, tmp_path: Path) -> None:
    write_character_tokenizer(PRESET.characters, PRESET.max_context, tmp_path)
    change(tmp_path, "config.json", eos_token_id=5)
    change(tmp_path, "generation_config.json", eos_token_id=[7, 5])
    assert load_tokenizer(tmp_path).eos_token_ids == (7, 5, 2)
    change(tmp_path, "tokenizer_config.json", eos_token={"content": "<pad>"}, bos_token=None)
    assert load_tokenizer(tmp_path).eos_token_ids == (7, 5, 0)
    assert load_tokenizer(tmp_path).bos_token_id is None


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    write_character_tokenizer(PRESET.characters, PRESET.max_context, tmp_path)
    change(tmp_path, "tokenizer_config.json", eos_token=None)
    with pytest.raises(ConfigError, match="no end token") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_without_a_tokenizer_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
    write_character_tokenizer(PRESET.characters, PRESET.max_context, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds a list"):
        load_tokenizer(tmp_path)


def test_transformers_reads_the_same_tokenizer(folder: Path, tokenizer: TextTokenizer) -> None:
    from transformers import AutoTokenizer

    heavy = AutoTokenizer.from_pretrained(folder)
    assert heavy("37+85=").input_ids == tokenizer.encode("37+85=").tolist()
    assert heavy.decode([4, 5, 2], skip_special_tokens=True) == "12"
    assert (heavy.pad_token_id, heavy.bos_token_id, heavy.eos_token_id) == (0, 1, 2)
    assert heavy.padding_side == "left"


def test_an_unknown_preset_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"'tiny-gpt'; there is tiny-qwen3"):
        find_preset("tiny-gpt")


def test_tokenizers_tasks_and_rewards_start_without_heavy_libraries() -> None:
    code = (
        "import sys, streamrl.models.tokenizer, streamrl.config.estimates.model_presets, streamrl.tasks.resolve, "
        "streamrl.rewards.pool, streamrl.rewards.child, streamrl.evaluation\n"
        "print([m for m in ('torch', 'transformers', 'ray', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
