"""A run stops when too many episodes fail, and not before."""

import pytest

from streamrl.environments.failure_budget import FailureBudget
from streamrl.errors import ComponentError


def test_more_than_the_limit_of_the_newest_stop_the_run_with_the_newest_reason() -> None:
    budget = FailureBudget("my:Game", window=10, limit=0.2)
    for failure in ("a", "a", *[""] * 7):
        budget.add(failure)
    budget.add("")  # 2 of 10 are allowed
    budget.add("b")  # the first of them has left the window,
    budget.add("c")  # and so has the second
    with pytest.raises(ComponentError, match=r"'my:Game': 3 of the last 10 .* reward.max_failed = 0.2 allows; .*: d"):
        budget.add("d")


def test_a_window_that_is_not_full_stops_nothing() -> None:
    budget = FailureBudget("my:Game", window=3, limit=0.0)
    budget.add("a")
    budget.add("a")
    with pytest.raises(ComponentError, match="3 of the last 3"):
        budget.add("a")
