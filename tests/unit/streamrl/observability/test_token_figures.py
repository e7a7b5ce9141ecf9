"""Lines of what the learner found for single tokens: what is written is read, row by row, and damage is told."""

import numpy as np
import pytest
from support.gateway.kept_figures import step_figures

from streamrl.errors import DataError
from streamrl.observability.token_figures import figures_of, line_of, step_of

ROWS = [("a", 0, 3, [0.5, -0.25]), ("a", 64, 3, [2.0]), ("b", 0, 0, []), ("a", 0, 4, [0.125, 0.0, 1.0])]
"""(path, offset, row, log-probs) of each."""


def test_each_row_is_read_as_it_was_written_and_others_are_not_there() -> None:
    line = line_of(step_figures(7, ROWS))
    assert line.count(b"\n") == 1
    assert step_of(line) == 7
    figures = figures_of(line)
    for path, offset, row, logprobs in ROWS:
        found = figures.of_row(path, offset, row)
        assert found is not None
        assert found.logprobs.tolist() == logprobs
        assert found.entropies.tolist() == [abs(one) for one in logprobs]
        assert found.advantages.tolist() == [10 * one for one in logprobs]
        assert (found.flags.dtype, found.flags.tolist()) == (np.uint8, [place % 8 for place in range(len(logprobs))])
    for path, offset, row in (("a", 0, 5), ("a", 1, 3), ("c", 0, 3), ("b", 64, 0)):
        assert figures.of_row(path, offset, row) is None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"", "no line of token figures"),
        (b'{"step": 1}', "no line of token figures"),
        (b"\xff\n", "no line of token figures"),
        (line_of(step_figures(1, ROWS))[:-40], "no line of token figures"),
        (line_of(step_figures(1, ROWS)).replace(b'"flags":"AAEA', b'"flags":"'), "differ in length"),
        (line_of(step_figures(1, ROWS)).replace(b'"tokens":"AgAA', b'"tokens":"AwAA'), "another number of tokens"),
    ],
)
def test_a_line_that_is_damaged_is_refused(line: bytes, what: str) -> None:
    with pytest.raises(DataError, match=what):
        figures_of(line)
