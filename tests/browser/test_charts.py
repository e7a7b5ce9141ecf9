"""The charts and the bar of the queue in a real browser: they fill their cards, and read well when there is much."""

import random
from typing import Any

import pytest
from support.gateway.page_run import COLOURS, opened, running
from support.gateway.page_server import PageServer, row, standing
from support.gateway.page_viewer import Viewer

CHARTS = ("reward", "staleness", "waits", "queue", "tokens", "weights")
STATES = ("pending", "complete", "scored", "ready", "leased")
LEFT_OVER = """
const card = document.getElementById(arguments[0]).getBoundingClientRect();
const inside = [...document.getElementById(arguments[0]).children].filter((one) => one.checkVisibility());
return card.bottom - inside.at(-1).getBoundingClientRect().bottom;
"""
"""Pixels between the end of a card and what stands last in it."""
COLUMNS = """
const canvas = document.querySelector(arguments[0]);
const context = canvas.getContext("2d");
const scale = canvas.width / canvas.clientWidth;
const [left, right, middle] = [52 * scale, canvas.width - 22 * scale, canvas.height * 0.4];
const line = context.getImageData(left, middle, right - left, 1).data;
let changes = 0;
for (let i = 4; i < line.length; i += 4) {
  changes += Math.abs(line[i] - line[i - 4]) + Math.abs(line[i + 2] - line[i - 2]) > 90;
}
return changes;
"""
"""How often the colour changes along a line through a chart."""
PAINTED_AT_THE_RIGHT = """
const canvas = document.querySelector(arguments[0]);
const wide = 20 * canvas.width / canvas.clientWidth;
const pixels = canvas.getContext("2d").getImageData(canvas.width - wide, 0, wide, canvas.height * 0.85).data;
return pixels.some((value, place) => place % 4 === 3 && value > 128);
"""
"""Whether something stands right of the curves of a chart."""


def jumping(server: PageServer, *, steps: int) -> None:
    """A run whose queue is full and empty by turns, with 512 rows."""
    draw = random.Random(7)
    rows = []
    for step in range(1, steps + 1):
        whole = draw.choice([512, 512, 480, 256, 20, 0])
        rows.append({**row(step), "queue/rows": whole, "queue/unscored": int(whole * draw.random() * 0.4)})
    server.write(rows)
    server.status(**standing(steps))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_charts_fill_their_cards(server: PageServer, page: Viewer, theme: str, width: int) -> None:
    jumping(server, steps=346)
    page.theme(theme)
    page.resize(width, 1500)
    opened(page, server)
    page.picture(f"charts-{width}-{theme}")
    for chart in CHARTS:
        assert page.run(LEFT_OVER, chart) <= 20, chart
        assert page.run(COLOURS, f"#{chart} canvas") > 3, chart
    heights = page.run("return arguments[0].map((id) => document.querySelector(`#${id} canvas`).clientHeight)", CHARTS)
    assert min(heights) >= 90
    page.resize(width, 1500)
    page.frame()
    again = page.run("return arguments[0].map((id) => document.querySelector(`#${id} canvas`).clientHeight)", CHARTS)
    assert again == heights, "a picture that sets its own height would grow for ever"


def test_a_queue_of_512_rows_that_jumps_is_a_band_and_no_fence(server: PageServer, page: Viewer) -> None:
    jumping(server, steps=346)
    page.resize(1440, 1500)
    opened(page, server)
    page.frame()
    assert "scored " in page.text("#queue .readout")
    assert page.text("#queue .readout").count(" rows") == 3
    # A line through the middle met each of the 346 steps; in the band it meets stripes and layers.
    assert page.run(COLUMNS, "#queue canvas") < 200


def test_the_rows_on_their_way_are_a_bar_in_the_order_of_their_states(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    page.until_text("#queue-whole", "756 rows on their way")
    widths = of_each(page, "#queue-bar div", "one.getBoundingClientRect().width")
    shares = [512, 40, 12, 128, 64]
    whole = page.run("return document.querySelector('#queue-bar').getBoundingClientRect().width")
    for wide, rows in zip(widths, shares, strict=True):
        assert wide == pytest.approx(whole * rows / sum(shares), abs=20)
    label = page.find("#queue-bar").get_attribute("aria-label")
    assert label.startswith("756 rows on their way: 512 being generated, 40 wait for a score")
    patterns = of_each(page, "#queue-bar div", "getComputedStyle(one).backgroundImage")
    assert len(set(patterns)) == len(STATES), "neighbours are told apart without their colours"
    assert of_each(page, "#queue-now li", "one.dataset.share") == ["68%", "5%", "2%", "17%", "8%"]


def of_each(page: Viewer, selector: str, what: str) -> list[Any]:
    return page.run(f"return [...document.querySelectorAll(arguments[0])].map((one) => {what})", selector)


def test_states_without_rows_take_no_place_and_an_unopened_queue_has_no_bar(server: PageServer, page: Viewer) -> None:
    running(server)
    server.status(**standing(120, queue={"rows_pending": 0, "rows_complete": 1, "rows_scored": 0, "rows_ready": 511}))
    opened(page, server)
    page.until_text("#queue-whole", "512 rows on their way")
    shown = [one.is_displayed() for one in page.all("#queue-bar div")]
    assert shown == [False, True, False, True]
    assert page.run("return document.querySelector('#queue-bar div:nth-child(2)').getBoundingClientRect().width") >= 3
    server.status(**standing(121, queue=None))
    page.until(lambda: not page.shown("#queue-bar"), "no bar")


def test_lines_have_letters_that_the_readout_explains(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    letters = ["a", "b", "c"]
    assert of_each(page, "#staleness .readout span", "one.dataset.letter") == letters
    shown = of_each(page, "#staleness .readout span", "getComputedStyle(one, '::before').content")
    assert shown == [f'"{letter}"' for letter in letters]
    for chart, painted in (("staleness", True), ("tokens", True), ("waits", False)):
        assert page.run(PAINTED_AT_THE_RIGHT, f"#{chart} canvas") is painted, chart


def test_a_single_step_is_drawn(server: PageServer, page: Viewer) -> None:
    running(server, steps=1)
    opened(page, server)
    page.frame()
    for chart in ("queue", "waits", "tokens"):
        assert page.run(COLOURS, f"#{chart} canvas") > 3, chart
