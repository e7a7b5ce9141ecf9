"""Preference pairs from a file: which lines are refused, what is held out, what the rows are."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.rewards.reward_models import copies, policy_folder, write_pairs

from streamrl.errors import ConfigError
from streamrl.learner.supervised.preference_pairs import encode_pairs, pair_rows, read_pairs, split_pairs
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer

GOOD = {"prompt": "1=", "chosen": "1", "rejected": "2"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(policy_folder(tmp_path_factory.mktemp("pairs")))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: Input data was truncated"),
        ("[1]", "line 2: Expected `object`"),
        ('{"prompt": "1=", "chosen": "1"}', "line 2: Object missing required field `rejected`"),
        (json.dumps({**GOOD, "chosen": [{"role": "user"}]}), "line 2: Expected `str`, got `array` - at `$.chosen`"),
        (json.dumps({**GOOD, "rejected": "1"}), "line 2: chosen and rejected are equal"),
        (json.dumps({**GOOD, "margin": -1}), "line 2: the margin is -1, not a finite number of 0 or more"),
        (json.dumps({**GOOD, "margin": "much"}), "line 2: Expected `float`, got `str` - at `$.margin`"),
        ('{"prompt": "\udcff", "chosen": "1", "rejected": "2"}', "line 2: "),
    ],
)
def test_a_line_that_is_no_pair_is_refused_with_its_number(line: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(f"{json.dumps(GOOD)}\n{line}\n\n{json.dumps(GOOD)}\n".encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        read_pairs(path)
    assert f"{path}: {says}" in str(caught.value)
    assert 'A line is {"prompt": "...",' in str(caught.value)
    assert "line 1" not in str(caught.value)


def test_all_wrong_lines_are_told_at_once_and_a_long_list_is_cut(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", [GOOD, *range(7)])
    with pytest.raises(ConfigError, match=r"line 2: .*line 3: .*line 6: .*; and 2 more\. A line is") as caught:
        read_pairs(path)
    assert "line 7" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl: No such file"):
        read_pairs(tmp_path / "none.jsonl")


def test_further_keys_and_empty_lines_have_no_part_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(["", json.dumps({**GOOD, "id": 7, "margin": 0.5}), " ", json.dumps(GOOD)]))
    pairs = read_pairs(path)
    assert list(pairs) == [2, 4]
    assert (pairs[2].margin, pairs[4].margin) == (0.5, 0.0)


def test_text_that_the_vocabulary_has_not_is_refused_by_line(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", [GOOD, {**GOOD, "rejected": "two"}, {**GOOD, "prompt": "one"}])
    with pytest.raises(ConfigError, match=r"line 2: .*'two'.*line 3: .*'one'.*Take a model whose tokenizer"):
        encode_pairs(read_pairs(path), tokenizer, path)


def test_prompts_are_held_out_whole_and_whatever_the_order_of_the_lines(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    pairs = copies(200, 3)
    sides = []
    for order in (pairs, pairs[::-1]):
        path = write_pairs(tmp_path / "pairs.jsonl", order)
        sides.append(split_pairs(encode_pairs(read_pairs(path), tokenizer, path), 0.2))
    (train, held_out), again = sides
    prompts = [{one.prompt.tobytes() for one in side} for side in (train, held_out, again[1])]
    assert not prompts[0] & prompts[1]
    assert prompts[1] == prompts[2]
    assert len(train) + len(held_out) == 200
    assert 40 <= len(held_out) < 50


def test_one_prompt_alone_cannot_be_on_both_sides(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", [GOOD, {**GOOD, "rejected": "3"}])
    with pytest.raises(ConfigError, match="2 pairs with 1 different prompts leave nothing to train on"):
        split_pairs(encode_pairs(read_pairs(path), tokenizer, path), 0.5)
    path.write_text("")
    with pytest.raises(ConfigError, match="0 pairs with 0 different prompts"):
        split_pairs(encode_pairs(read_pairs(path), tokenizer, path), 0.5)


def test_a_row_is_what_a_rollout_would_be_and_one_target_behind_it(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.jsonl", [{**GOOD, "prompt": "12=", "chosen": "12", "margin": 2}])
    rows = pair_rows(encode_pairs(read_pairs(path), tokenizer, path))
    text = [tokenizer.decode(rows.token_ids[a : b - 1]) for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)]
    assert text == ["12=12", "12=2"]
    eos = tokenizer.eos_token_ids[0]
    assert rows.token_ids.tolist()[:1] == [tokenizer.bos_token_id]
    assert [rows.token_ids[end - 2] for end in rows.offsets[1:]] == [eos, eos]
    sampled = np.flatnonzero(rows.token_origin == 1)
    assert sampled.tolist() == [end - 1 for end in rows.offsets[1:]]
    assert rows.token_origin.tolist()[:7] == [0, 0, 0, 0, 2, 2, 2]
    assert rows.rewards.tolist() == [2.0, 0.0]
    assert rows.group.tolist() == [0, 0]
