"""From ids to text as they come: nothing is lost, no stop string and no half character is shown."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines.bytewise import BYTEWISE, bytewise

from streamrl.config.estimates.model_presets import PRESETS
from streamrl.conversations.text import TextStream
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer, write_character_tokenizer

LETTERS = PRESETS["tiny-qwen3"].characters


@pytest.fixture(scope="module")
def letterwise(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder: Path = tmp_path_factory.mktemp("letters")
    write_character_tokenizer(LETTERS, 64, folder)
    return load_tokenizer(folder)


def fed(stream: TextStream, ids: list[int], cuts: random.Random) -> tuple[list[str], int]:
    """Deltas and tokens taken, the ids given in pieces of any length."""
    shown, taken = [], 0
    while ids and not stream.stopped:
        count = cuts.randint(1, len(ids))
        piece, ids = ids[:count], ids[count:]
        got = stream.feed(piece)
        assert len(got.offsets) == got.num_tokens <= len(piece)
        shown.append(got.text)
        taken += got.num_tokens
    return [*shown, stream.flush()], taken


@given(st.text(max_size=40), st.randoms(use_true_random=False))
def test_deltas_make_up_the_text_and_hold_whole_characters(text: str, cuts: random.Random) -> None:
    text = text.encode(errors="ignore").decode()
    ids = BYTEWISE.encode(text, add_special_tokens=False).tolist()
    shown, taken = fed(TextStream(BYTEWISE), ids, cuts)
    assert "".join(shown) == text
    assert taken == len(ids)


@given(
    st.text("01=", max_size=40),
    st.lists(st.text("01=", min_size=1, max_size=4), max_size=3),
    st.randoms(use_true_random=False),
)
def test_no_stop_string_is_shown_and_all_before_the_first_one_is(
    text: str, stops: list[str], cuts: random.Random
) -> None:
    ids = BYTEWISE.encode(text, add_special_tokens=False).tolist()
    stream = TextStream(BYTEWISE, stops)
    shown, taken = fed(stream, ids, cuts)
    # A token is a letter here: the stop that is complete first ends it, and of several the one that begins first.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    first_end = min((end for end, _ in ends), default=None)
    expected = text if first_end is None else text[: min(start for end, start in ends if end == first_end)]
    assert "".join(shown) == expected
    assert stream.stopped == bool(ends)
    assert taken == (len(ids) if first_end is None else first_end)
    for count in range(len(shown)):
        assert not any(stop in "".join(shown[:count]) for stop in stops)


def test_a_character_that_never_becomes_whole_is_shown_at_the_end_as_its_decoder_writes_it() -> None:
    ids = BYTEWISE.encode("aé", add_special_tokens=False).tolist()[:-1]
    stream = TextStream(BYTEWISE)
    assert stream.feed(ids).text == "a"
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_special_tokens_have_no_text_and_offsets_count_what_is_before(letterwise: TextTokenizer) -> None:
    ids = [1, *letterwise.encode("12=", add_special_tokens=False).tolist(), 2]
    taken = TextStream(letterwise).feed(ids)
    assert (taken.text, taken.offsets) == ("12=", [0, 0, 1, 2, 3])
    assert letterwise.decode(np.array(ids, np.int32)) == "12="


def test_special_tokens_that_are_needed_are_shown_and_no_others() -> None:
    inner = bytewise()._tokenizer
    marks = ["<｜tool▁sep｜>", "[TOOL_CALLS]", "<|end|>"]  # noqa: RUF001
    inner.add_special_tokens(marks)
    tokenizer = TextTokenizer(inner, eos_token_ids=(0,))
    written = tokenizer.special_ids([*marks[:2], "a", "none"])
    assert written == {256, 257}
    text = f"ü{marks[0]}漢 {marks[1]}x{marks[2]}😀{marks[0]}"
    ids = tokenizer.encode(text).tolist()
    assert {256, 257, 258} < set(ids)
    expected = text.replace(marks[2], "")
    assert tokenizer.decode(np.array(ids, np.int32), written=written) == expected
    stream = TextStream(tokenizer, written=written)
    assert "".join(stream.feed([token_id]).text for token_id in ids) + stream.flush() == expected
    plain = TextStream(tokenizer)
    assert plain.feed(ids).text + plain.flush() == "ü漢 x😀" == tokenizer.decode(np.array(ids, np.int32))
