"""The page in a real browser: what it shows, what it follows, what it says when something is wrong."""

import itertools
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from support.gateway.page_run import COLOURS, opened, running
from support.gateway.page_server import PageServer, replica, row, sample, standing
from support.gateway.page_viewer import Viewer

from streamrl.gateway.auth import Scope
from streamrl.observability.evaluations import EvaluationRecord

CHARTS = ("reward", "staleness", "waits", "queue", "tokens", "weights")
PARTS = ("scale-rollout", "order-rollout", "scale-reward", "order-reward")


# ---- what it shows


def test_behind_a_prefix_of_a_proxy_the_page_finds_its_files_its_figures_and_its_events(
    page: Viewer, tmp_path: Path
) -> None:
    with PageServer(tmp_path, path_prefix="/team/llm") as server:
        server.samples = [sample(number) for number in range(5, 0, -1)]
        running(server)
        opened(page, server)
        page.until(lambda: len(page.all("#sample-rows tr")) == 5, "samples")
        server.step({**row(121), "reward/mean": 0.987})
        page.until_text("#reward .readout", "reward 0.987")
        asked = page.run("return performance.getEntriesByType('resource').map(one => one.name)")
        # A proxy has nothing of the gateway's outside of the prefix.
        assert len(asked) > 10
        assert [url for url in asked if not url.startswith((f"{server.url}/team/llm/", "data:"))] == []
        assert page.complaints() == []


def test_what_was_evaluated_beside_the_run_stands_below_its_scores(server: PageServer, page: Viewer) -> None:
    scores = {"exact_match,strict-match": 0.41, "exact_match,flexible-extract": 0.5}
    server.evaluated(
        EvaluationRecord(
            time_ns=1, name="<b>gsm8k", step=100, version="0.100", scores=scores, source="lm-eval", limit=50.0
        )
    )
    running(server)
    opened(page, server)
    page.until_text("#evaluations", "gsm8k")
    (line,) = page.all("#evaluations li")
    assert line.text == "<b>gsm8k: exact_match,strict-match 0.410, exact_match,flexible-extract 0.500 at step 100"
    assert page.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_run_is_shown_whole_in_both_themes(server: PageServer, page: Viewer, theme: str) -> None:
    server.samples = [sample(number) for number in range(20, 0, -1)]
    running(server)
    page.theme(theme)
    page.resize(1400, 1700)
    opened(page, server)
    page.until(lambda: len(page.all("#sample-rows tr")) == 20, "samples")
    assert page.text("#name") == "run"
    assert "step 120 of 100, version 0.120, held-out score 0.710 at step 100" in page.text("#progress")
    assert "max_staleness" in page.text("#findings") or "generation" in page.text("#findings")
    assert "learner: " in page.text("#waits-now")
    assert "rows" in page.text("#waits-now")
    assert [one.text for one in page.all("#queue-now li")][:2] == ["512 being generated", "40 wait for a score"]
    assert [one.text for one in page.all("#drop-rows tr")] == ["zero_variance 12", "cancelled 3"]
    assert [one.text for one in page.all("#replica-rows tr:nth-child(3) td")][:5] == [
        *("rollout-2", "serving", "0.118", "2", "30"),
    ]
    assert "39.1 KiB written, of a model of 1.5 MiB" in page.text("#weights-now")
    page.picture(f"run-{theme}")
    for chart in CHARTS:
        assert page.run(COLOURS, f"#{chart} canvas") > 3, f"{chart} has nothing drawn"
    assert page.run(COLOURS, "#behind") > 2
    assert page.complaints() == []


def test_the_page_follows_the_run(server: PageServer, page: Viewer) -> None:
    running(server, steps=3)
    opened(page, server)
    before = page.text("#reward .readout")
    server.step({**row(4), "reward/mean": 0.987})
    page.until_text("#reward .readout", "reward 0.987")
    assert before != page.text("#reward .readout")
    assert page.text("#phase") == "training"
    server.status(**standing(7, replicas=5))
    page.until_text("#progress", "step 7 of")
    page.until(lambda: len(page.all("#replica-rows tr")) == 5, "two more replicas")
    server.status(**{**standing(7), "replicas": [replica(number, 7) for number in (10, 1, 0, 9)]})
    page.until(lambda: len(page.all("#replica-rows tr")) == 4, "others")
    names = [one.text for one in page.all("#replica-rows td:first-child")]
    assert names == ["rollout-0", "rollout-1", "rollout-9", "rollout-10"]
    server.status(**standing(8, replicas=2))
    page.until(lambda: len(page.all("#replica-rows tr")) == 2, "three less")
    server.tell("notice", text="rollout replicas: 5 -> 2")
    page.until_text("#notices", "rollout replicas: 5 -> 2")
    assert page.run("return document.title") == "run: step 8"


def test_steps_that_are_made_again_after_a_resume_replace_those_before(server: PageServer, page: Viewer) -> None:
    running(server, steps=20)
    opened(page, server)
    page.find("#reward canvas").send_keys(Keys.END)
    page.until_text("#reward .readout", "step 20")
    page.find("#reward canvas").send_keys(Keys.ESCAPE)
    server.truncate(10)
    server.step({**row(11), "reward/mean": 0.111})
    page.until_text("#reward .readout", "reward 0.111")
    page.find("#reward canvas").send_keys(Keys.END)
    page.until_text("#reward .readout", "step 11")
    page.find("#reward canvas").send_keys(Keys.ARROW_LEFT)
    page.until_text("#reward .readout", "step 10")
    page.find("#reward canvas").send_keys(Keys.ARROW_RIGHT * 4)
    page.until(lambda: page.text("#reward .readout span") == "step 11", "nothing behind step 11")


def test_curves_go_over_steps_or_over_time(server: PageServer, page: Viewer) -> None:
    server.write([{**row(step), "time/step": 30.0} for step in range(1, 11)])
    server.status(**standing(10))
    opened(page, server)
    for value, first, last in (("time", "time 30 s", "time 5:00"), ("step", "step 1", "step 10")):
        page.find(f"input[name=axis][value={value}]").click()
        page.find("#reward canvas").send_keys(Keys.HOME)
        page.until_text("#reward .readout", first)
        page.find("#reward canvas").send_keys(Keys.END)
        page.until_text("#reward .readout", last)


# ---- the token


def test_the_token_of_the_link_leaves_the_address_and_stays_in_the_tab(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    assert page.driver.current_url == f"{server.url}/"
    assert page.run("return sessionStorage.length + localStorage.length") == 1
    assert server.token() not in page.driver.page_source
    assert page.run("return document.cookie") == ""
    page.driver.refresh()
    page.until_text("#progress", "step 120")
    assert not page.shown("#token-form")


def test_without_a_token_the_page_asks_for_one_and_says_what_is_wrong(server: PageServer, page: Viewer) -> None:
    running(server)
    page.open(server.url)
    page.until(lambda: page.shown("#token-form"), "the form")
    page.picture("token")
    assert (page.text("#token-wrong"), page.shown("main")) == ("", False)
    assert page.run("return document.activeElement.id") == "token"
    for wrong, says in (
        ("srl-wrong", "not a token of this run"),
        (server.token(Scope.GENERATE), "wants the one for control"),
        ("caf\u00e9 \u2603", "not a token of this run"),
    ):
        page.find("#token").send_keys(wrong, Keys.ENTER)
        page.until_text("#token-wrong", says)
        page.until(lambda: page.shown("#token-form"), "the form again")
    page.picture("token-wrong")
    page.find("#token").send_keys(server.token(), Keys.ENTER)
    page.until_text("#progress", "step 120")
    assert (page.shown("#token-form"), page.shown("main")) == (False, True)
    assert page.run("return document.querySelector('#token').value") == ""
    page.complaints()  # the refusals themselves


def test_a_link_opened_in_the_tab_of_another_one_is_taken(server: PageServer, page: Viewer) -> None:
    running(server)
    page.open(server.url)
    page.until(lambda: page.shown("#token-form"), "the form")
    page.driver.get(server.link)
    page.until_text("#progress", "step 120")
    assert "#" not in page.driver.current_url


# ---- what goes wrong


def test_a_lost_connection_is_said_and_comes_back_by_itself(server: PageServer, page: Viewer) -> None:
    running(server, steps=5)
    opened(page, server)
    assert page.text("#connection") == "connected"
    server.stop_gateway()
    page.until_text("#connection", "not connected since")
    page.until_text("#connection", "since 1 s")
    page.picture("not-connected")
    assert "reward" in page.text("#reward .readout"), "what was known stays"
    server.write([{**row(6), "reward/mean": 0.666}])
    server.start_gateway()
    page.until(lambda: page.text("#connection") == "connected", "connected")
    page.until_text("#reward .readout", "reward 0.666")
    page.complaints()  # that nobody answered


def test_of_several_failures_the_first_is_shown_until_the_system_starts_again(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    assert not page.shown("#failure")
    server.tell("failure", component="learner", phase="run", version="0.3", cause="loss is nan <b>at step 4</b>")
    server.tell("failure", component="reward", phase="run", version="0.3", cause="its queue is gone")
    server.tell("notice", text="after both")
    page.until_text("#notices", "after both")
    assert page.text("#failure") == "learner failed in run: loss is nan <b>at step 4</b>"
    page.picture("failure")
    server.tell("phase", name="ray")
    page.until(lambda: not page.shown("#failure"), "no failure any more")
    server.step(row(121))
    page.until_text("#reward .readout", f"reward {row(121)['reward/mean']:.3f}")
    assert page.text("#phase") == "ray", "it is not as far yet"
    server.tell("end", how="failed", code=4, error={"type": "ComponentError", "message": "the raylet is gone"})
    page.until_text("#failure", "the raylet is gone")
    assert page.text("#phase") == "the run has ended: failed"


def test_a_run_that_has_no_step_yet_and_one_that_tells_nothing(server: PageServer, page: Viewer) -> None:
    server.status(metrics={}, replicas=[], queue=None, steps=0)
    server.tell("phase", name="warm-up")
    page.open(server.link)
    page.until_text("#phase", "warm-up")
    page.until_text("#progress", "step 0")
    assert page.text("#reward .readout") == "nothing yet"
    page.until_text("#samples-said", "No sample yet.")
    page.picture("no-step-yet")
    server.step(row(1))
    page.until_text("#reward .readout", "reward 0")
    assert page.complaints() == []


def test_a_line_of_metrics_that_is_none_is_told_and_the_others_are_shown(server: PageServer, page: Viewer) -> None:
    running(server, steps=2)
    server.damage()
    page.open(server.link)
    page.until_text("#why", "1 line of metrics is skipped")
    assert "metrics.jsonl:3 is no metrics line" in page.text("#why")
    page.until_text("#progress", "step 2")
    assert page.text("#connection") == "connected"
    assert page.complaints() == []


# ---- scale


@pytest.mark.parametrize("part", ["rollout", "reward"])
def test_a_part_is_scaled_and_what_is_refused_is_said(server: PageServer, page: Viewer, part: str) -> None:
    form, other = f"form[data-part={part}]", "reward" if part == "rollout" else "rollout"
    running(server)
    server.status(**standing(120), reward={"workers": 2})
    opened(page, server)
    page.until_text("form[data-part=rollout] .now", "2 wanted, 2 serve")
    page.until_text("form[data-part=reward] .now", "2 wanted, 2 score")
    order(page, part, "4")
    page.until_text(f"{form} [role=status]", "2 -> 4")
    page.until_text(f"{form} .now", "4 wanted, 2 ")
    order(page, part, "99")
    page.until_text(f"{form} [role=status]", f"{part} = 99: this machine has memory for 8")
    assert server.scale[part]["now"] == 4
    for bad in ("0", "-1", "1.5", ""):
        order(page, part, bad)
        assert page.run(f"return document.querySelector('#scale-{part}').validity.valid") is False
    assert (server.scale[part]["now"], server.scale[other]["now"]) == (4, 2)
    assert page.text(f"form[data-part={other}] [role=status]") == ""
    page.complaints()  # the refusal


def order(page: Viewer, part: str, number: str) -> None:
    field = page.find(f"#scale-{part}")
    field.send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE, number, Keys.ENTER)


def test_children_that_join_are_shown_without_an_order(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    page.until_text("form[data-part=reward] .now", "2 wanted")
    server.scale["reward"]["now"] = 3
    server.status(**standing(120), reward={"workers": 3})
    page.until_text("form[data-part=reward] .now", "3 wanted, 3 score")
    assert page.find("#scale-reward").get_attribute("value") == "3"


def test_each_field_and_button_of_the_parts_has_a_name_of_its_own(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    names = [
        page.find(f"#{what}-{part}").accessible_name for part in ("rollout", "reward") for what in ("scale", "order")
    ]
    assert names == ["Rollout replicas", "Scale rollout replicas", "Reward workers", "Scale reward workers"]


# ---- everybody


def test_all_is_reached_by_the_keyboard_in_the_order_of_the_page(server: PageServer, page: Viewer) -> None:
    server.samples = [sample(1)]
    running(server)
    opened(page, server)
    page.until(lambda: page.all("#sample-rows button"), "samples")
    page.run("document.activeElement.blur()")
    reached = []
    for _ in range(40):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.run(FOCUSED))
        if reached[-1].startswith("1/0/0"):
            break
    names = [name for name, _ in itertools.groupby(reached)]
    charts = [f"{chart} canvas" for chart in CHARTS]
    assert [name for name in names if name in charts] == charts
    assert [name for name in names if name in PARTS] == list(PARTS)
    for name in ("step", *PARTS, "samples-live", "version", "1/0/0"):
        assert name in names, name
    assert page.run(OUTLINED), "who has the focus is seen"
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.all("#sample-rows .token")


FOCUSED = """
const one = document.activeElement;
if (one.tagName === "CANVAS") return `${one.closest("section").id} canvas`;
return one.type === "radio" ? one.value : one.id || one.textContent.slice(0, 20);
"""
OUTLINED = "const style = getComputedStyle(document.activeElement); return parseFloat(style.outlineWidth) >= 2;"


def test_arrow_keys_move_in_a_curve_and_say_where_they_are(server: PageServer, page: Viewer) -> None:
    running(server, steps=30)
    opened(page, server)
    canvas = page.find("#reward canvas")
    for keys_, step in ((Keys.HOME, 1), (Keys.ARROW_RIGHT, 2), (Keys.ARROW_LEFT * 3, 1), (Keys.END, 30)):
        canvas.send_keys(keys_)
        page.until(lambda step=step: page.text("#reward .readout span") == f"step {step}", f"step {step}")
        assert f"step {step}, reward" in canvas.get_attribute("aria-label")
    canvas.send_keys(Keys.ESCAPE)
    page.until(lambda: page.text("#reward .readout").startswith("reward"), "no place")


@pytest.mark.parametrize("width", [360, 390, 800])
def test_a_narrow_window_scrolls_down_and_not_sideways(server: PageServer, page: Viewer, width: int) -> None:
    server.samples = [sample(1, completion=["long" * 400])]
    running(server)
    page.resize(width, 900)
    opened(page, server)
    page.until(lambda: page.all("#sample-rows button"), "samples").pop().click()
    page.picture(f"width-{width}")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_a_page_that_is_left_is_followed_no_more(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    assert server.readers == 1
    page.driver.get("about:blank")
    page.until(lambda: server.readers == 0, "no reader")
