"""Signs that a rollout is no sensible text."""

import pytest

from streamrl.gateway.page.oddities import LEAST_TOKENS, oddities

PLAIN = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30]


def signs(ids: list[int], *, text: str = "fine", logprob: float = -0.5) -> list[str]:
    return oddities(ids, text, [logprob] * len(ids))


def test_a_plain_text_has_no_sign() -> None:
    assert signs(PLAIN) == []
    assert signs([]) == []
    assert signs([7] * (LEAST_TOKENS - 1)) == [], "a short one repeats itself without a reason to look"


@pytest.mark.parametrize("period", [1, 2, 5, 16])
@pytest.mark.parametrize("end", [[], [2]])
def test_a_text_that_ends_in_the_same_tokens_again_and_again_repeats_itself(period: int, end: list[int]) -> None:
    cycle = list(range(100, 100 + period))
    times = -(-max(LEAST_TOKENS, 4 * period) // period)
    assert signs([*PLAIN, *(cycle * times), *end]) == ["ends in repetition"]
    assert signs([*(cycle * times), *PLAIN]) == [], "it came out of it"


def test_three_times_is_no_repetition() -> None:
    assert signs([*PLAIN, *(list(range(100, 116)) * 3)]) == []


def test_characters_that_are_none_and_tokens_that_are_all_unlikely_are_signs() -> None:
    assert signs(PLAIN, text="a \ufffd b") == ["broken characters"]
    assert signs(PLAIN, logprob=-4.0) == ["unlikely tokens"]
    assert signs(PLAIN[:8], logprob=-9.0) == []
    assert signs([5] * 40, text="\ufffd", logprob=-9.0) == [
        "broken characters",
        "ends in repetition",
        "unlikely tokens",
    ]
