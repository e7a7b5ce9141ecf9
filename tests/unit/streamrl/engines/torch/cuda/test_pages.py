"""The page table: what rows hold is what was asked for, shared pages are freed once, and nothing is lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrl.engines.torch.cuda.pages import PAGE, PageBudget, PageTable, pages_for

WIDTH, ROWS = 4, 6


def held(table: PageTable, row: int) -> list[int]:
    return [page for page in table.table[row].tolist() if page]


def test_pages_for_counts_the_page_that_is_begun() -> None:
    assert [pages_for(tokens) for tokens in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]


def test_rows_that_share_a_prompt_hold_its_full_pages_together() -> None:
    table = PageTable(20, ROWS, WIDTH)
    table.reserve(0, 4 * PAGE)
    table.share(1, 0, 2, 3 * PAGE)
    assert held(table, 0)[:2] == held(table, 1)[:2]
    assert not set(held(table, 0)[2:]) & set(held(table, 1)[2:])
    assert table.used == 5
    table.release([0])
    assert table.used == 3, "the shared pages are still the other row's"
    table.release([1])
    assert table.used == 0
    assert table.free == table.total == 19


def test_a_row_that_is_released_twice_frees_its_pages_once() -> None:
    table = PageTable(20, ROWS, WIDTH)
    table.reserve(0, 4 * PAGE)
    table.release([0])
    table.release([0])
    assert table.free == 19


def test_a_budget_counts_what_a_request_shares_once() -> None:
    budget = PageBudget(5)
    assert budget.take(3 * PAGE)
    assert not budget.take(3 * PAGE)
    assert budget.take(3 * PAGE, shared_tokens=PAGE + 3), "one page is shared, two are its own"
    assert not budget.take(1)


@given(st.data())
def test_no_page_is_lost_or_held_by_strangers(data: st.DataObject) -> None:
    """Random starts, groups, ends and moves against a model that keeps lists."""
    table, model = PageTable(ROWS * WIDTH // 2, ROWS, WIDTH), dict[int, list[int]]()
    for _ in range(data.draw(st.integers(1, 25))):
        empty = [row for row in range(ROWS) if row not in model]
        action = data.draw(st.sampled_from(["start", "share", "end", "move"]))
        if action == "start" and empty:
            tokens = data.draw(st.integers(1, WIDTH * PAGE))
            if PageBudget(table.free).take(tokens):
                table.reserve(empty[0], tokens)
                model[empty[0]] = held(table, empty[0])
                assert len(model[empty[0]]) == pages_for(tokens)
        elif action == "share" and empty and model:
            leader = data.draw(st.sampled_from(sorted(model)))
            shared = data.draw(st.integers(0, len(model[leader])))
            if WIDTH - shared <= table.free:
                table.share(empty[0], leader, shared, WIDTH * PAGE)
                model[empty[0]] = held(table, empty[0])
                assert model[empty[0]][:shared] == model[leader][:shared]
        elif action == "end" and model:
            row = data.draw(st.sampled_from(sorted(model)))
            table.release([row])
            del model[row]
        elif action == "move" and model and empty:
            row = data.draw(st.sampled_from(sorted(model)))
            table.move(np.array([row]), np.array([empty[0]]))
            model[empty[0]] = model.pop(row)
        pages = {page for row in model.values() for page in row}
        assert 0 not in pages
        assert table.used == len(pages)
        assert all(held(table, row) == model.get(row, []) for row in range(ROWS))


def test_what_is_kept_of_a_row_are_its_first_pages_and_it_may_grow_again() -> None:
    table = PageTable(11, rows=4, width=5)
    table.reserve(0, 4 * PAGE)
    table.share(1, 0, 2, 4 * PAGE)
    first = table.table[0, :2].tolist()
    table.keep(0, 3, PAGE + 1)
    assert table.table[3].tolist() == [*first, 0, 0, 0]
    assert table.table[0].tolist() == [0] * 5
    assert table.used == 4, "two are the other row's as well, and two its own"
    table.move(np.array([3]), np.array([2]))
    table.grow(2, 3 * PAGE)
    assert table.table[2, :2].tolist() == first
    assert table.used == 5
    table.release([1, 2, 3])
    assert table.used == 0
    assert sorted(table._free) == list(range(1, 11))
