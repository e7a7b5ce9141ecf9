"""Two runs beside each other in a real browser."""

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from support.gateway.page_run import COLOURS, CONTRASTS, opened, other_run, running
from support.gateway.page_server import PageServer, row, standing
from support.gateway.page_viewer import Viewer

from streamrl.observability.metrics import MetricsWriter

PARTS = {"reward/correct/mean": 0.75, "reward/format/mean": 0.25}


def chosen(page: Viewer, name: str) -> None:
    page.until(lambda: page.shown("#compare-run"), "the choice")
    Select(page.find("#compare-run")).select_by_value(name)
    page.until_text("#reward .readout", f"reward of {name}")


def table(page: Viewer) -> dict[str, list[str]]:
    cells = "[...row.cells].map((cell) => cell.textContent)"
    rows = page.run(f"return [...document.querySelectorAll('#compare-rows tr')].map((row) => {cells})")
    return {name: rest for name, *rest in rows}


def test_a_run_without_neighbours_offers_none(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    assert not page.shown("#compare")


def test_the_curves_of_another_run_lie_beside_those_of_this_one_and_both_are_in_a_table(
    server: PageServer, page: Viewer, tmp_path: Path
) -> None:
    other_run(tmp_path / "baseline", steps=90, **{"reward/mean": 0.25, "learner/x": 1.0})
    running(server, steps=120, **{"reward/mean": 0.75, "time/step": 1.0, "time/wait": 0.5})
    opened(page, server)
    plain = page.run(COLOURS, "#reward canvas")
    chosen(page, "baseline")
    assert "reward of baseline 0.250" in page.text("#reward .readout")
    assert page.run(COLOURS, "#reward canvas") >= plain
    page.find("#reward canvas").send_keys(Keys.HOME)
    page.until_text("#reward .readout", "step 1")
    page.find("#reward canvas").send_keys(Keys.ESCAPE)
    assert "means of the 20 steps up to step 90" in page.text("#compare-said")
    rows = table(page)
    assert rows["reward"] == ["0.750", "0.250", "+0.500"]
    assert rows["learner waits, of its time"][0] == "50%"
    assert rows["learner waits, of its time"][2].endswith(" points")
    assert page.text("#compare-name") == "baseline"
    Select(page.find("#compare-run")).select_by_value("")
    page.until(lambda: "of baseline" not in page.text("#reward .readout"), "this run alone")
    assert not page.shown("#compare-table")
    assert page.complaints() == []


def test_the_other_run_is_followed_by_time_as_well(server: PageServer, page: Viewer, tmp_path: Path) -> None:
    other_run(tmp_path / "slower", steps=30, **{"time/step": 60.0})
    running(server, steps=30, **{"time/step": 1.0})
    opened(page, server)
    chosen(page, "slower")
    page.find("input[name=axis][value=time]").click()
    page.find("#reward canvas").send_keys(Keys.END)
    page.until_text("#reward .readout", "time 30")
    page.find("#reward canvas").send_keys(Keys.ESCAPE)
    page.picture("compare-time")


def test_components_of_the_reward_have_curves_and_are_compared(
    server: PageServer, page: Viewer, tmp_path: Path
) -> None:
    other_run(tmp_path / "baseline", **{**PARTS, "reward/correct/mean": 0.5})
    running(server, **PARTS)
    opened(page, server)
    page.until_text("#components .readout", "correct 0.750")
    assert "format 0.250" in page.text("#components .readout")
    chosen(page, "baseline")
    page.until_text("#components .readout", "correct of baseline 0.500")
    assert table(page)["reward: correct"] == ["0.750", "0.500", "+0.250"]
    server.step({**row(121), **PARTS, "reward/correct/mean": 0.875})
    page.until_text("#components .readout", "correct 0.875")


def test_components_that_are_told_first_while_the_page_is_open_appear(server: PageServer, page: Viewer) -> None:
    running(server, steps=3)
    opened(page, server)
    assert not page.shown("#components")
    server.step({**row(4), "reward/correct/mean": 0.5})
    page.until_text("#components .readout", "correct 0.500")
    assert page.shown("#components")


def test_of_many_components_the_first_are_drawn_and_the_others_counted(server: PageServer, page: Viewer) -> None:
    running(server, **{f"reward/part-{number}/mean": number / 10 for number in range(11)})
    opened(page, server)
    page.until_text("#components .readout", "part-7 0.7")
    assert "part-8" not in page.text("#components .readout")
    assert page.text("#components-left") == "and 3 more, which /api/history has"


def test_a_run_that_goes_away_is_said_so_and_what_is_known_stays(
    server: PageServer, page: Viewer, tmp_path: Path
) -> None:
    other_run(tmp_path / "baseline")
    other_run(tmp_path / "third", seed=2)
    running(server)
    opened(page, server)
    chosen(page, "third")
    (tmp_path / "baseline").rename(tmp_path.parent / f"{tmp_path.name}-gone")
    Select(page.find("#compare-run")).select_by_value("baseline")
    page.until_text("#compare-said", "no run 'baseline' with metrics lies beside this one")
    page.complaints()  # the refusal
    assert page.text("#connection") == "connected"


def test_a_running_neighbour_is_read_again_as_it_goes_on(server: PageServer, page: Viewer, tmp_path: Path) -> None:
    other_run(tmp_path / "baseline", steps=5, **{"reward/mean": 0.1})
    running(server)
    opened(page, server)
    chosen(page, "baseline")
    with MetricsWriter(tmp_path / "baseline/metrics.jsonl") as metrics:
        metrics.write({**row(6), "reward/mean": 0.9})
    Select(page.find("#compare-run")).select_by_value("")
    chosen(page, "baseline")
    page.until_text("#reward .readout", "reward of baseline 0.900")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_both_runs_are_read_at_every_width_in_both_themes(
    server: PageServer, page: Viewer, tmp_path: Path, theme: str, width: int
) -> None:
    other_run(tmp_path / "baseline", steps=250, **PARTS)
    running(server, steps=346, **{**PARTS, "reward/correct/mean": 0.5})
    server.status(**standing(346))
    page.theme(theme)
    page.resize(width, 1400)
    opened(page, server)
    chosen(page, "baseline")
    page.picture(f"compare-{width}-{theme}")
    assert page.run(CONTRASTS) == []
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_choice_and_the_table_have_names_and_are_reached_by_the_keyboard(
    server: PageServer, page: Viewer, tmp_path: Path
) -> None:
    other_run(tmp_path / "baseline")
    running(server)
    opened(page, server)
    page.until(lambda: page.shown("#compare-run"), "the choice")
    assert page.find("#compare-run").accessible_name == "Compare with"
    page.run("document.querySelector('#compare-run').focus()")
    page.driver.switch_to.active_element.send_keys("base")
    page.until_text("#reward .readout", "reward of baseline")
    assert page.find("#compare-table").accessible_name == "Both runs"
    scopes = page.run("return [...document.querySelectorAll('#compare-table th')].map((one) => one.scope)")
    assert set(scopes) == {"col", "row"}
