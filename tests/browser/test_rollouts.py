"""Rollouts on the page in a real browser: what is laid over their tokens, what is said of each, what is lacking."""

from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from support.gateway.page_run import COLOURS, CONTRASTS, choose_overlay, opened, running
from support.gateway.page_server import PageServer, sample, standing
from support.gateway.page_viewer import Viewer

OVERLAYS = ("version", "logprob", "entropy", "mismatch", "mask", "advantage")
WORDS = ["The", " sum", " of", " 12", " and", " 30", " is", " 42", ".", "\n"]
MASK = [
    *([0, "trained"], [30, "clipped"], [33, "trained"], [60, "truncated"], [62, "trained"]),
    *([90, "given"], [120, "trained"], [200, "rejected"], [204, "trained"]),
]
UNKNOWN = {"entropy": None, "mismatch": None, "mask": [[0, "sampled"]]}


def buttons(page: Viewer, count: int) -> list[WebElement]:
    """Of the samples, once there are so many."""
    page.until(lambda: len(page.all("#sample-rows button")) == count, "samples")
    return page.all("#sample-rows button")


def classes(page: Viewer) -> list[str]:
    names = page.run("return [...document.querySelectorAll('.token')].map((one) => one.className)")
    return [name.removeprefix("token").replace("current", "").strip() for name in names]


def long_sample(number: int, count: int = 240, **facts: Any) -> dict[str, Any]:
    """One of a conversation with a tool, as the learner kept it."""
    tokens = [WORDS[place % len(WORDS)] for place in range(count)]
    given = range(90, 120)
    known = [place not in given for place in range(count)]
    figures = {
        "version_spans": [[0, f"0.{number}"], [100, f"0.{number + 1}"], [200, f"0.{number + 2}"]],
        "entropy": [0.2 + 2.5 * ((7 * place) % 23 / 23) ** 3 if known[place] else None for place in range(count)],
        "mismatch": [0.02 * ((11 * place) % 19 - 9) ** 3 / 81 if known[place] else None for place in range(count)],
        "mask": MASK,
        "advantage": [0.8 - place / 150 if known[place] else None for place in range(count)],
        "logprobs": [-0.02 - 5 * ((7 * place) % 23 / 23) ** 4 if known[place] else 0.0 for place in range(count)],
        "components": {"correct": 1.0, "format": 0.5},
    }
    return sample(number, completion=tokens, **{**figures, **facts})


def test_a_sample_opens_to_its_tokens_under_the_overlay_that_is_asked_for(server: PageServer, page: Viewer) -> None:
    server.samples = [sample(2), sample(1, advantage=None), sample(0, advantage=[-2.0, -0.5, -0.1, 0.0, 0.1, 0.5, 2.0])]
    running(server)
    opened(page, server)
    newest, without, by_token = buttons(page, 3)
    newest.click()
    tokens = page.all("#sample-rows .token")
    assert "".join(one.get_attribute("textContent") for one in tokens) == "12+30=42\u21b5\n"
    assert classes(page) == ["v0"] * 3 + ["v1"] * 4
    marks = page.run("return [...document.querySelectorAll('.token')].map((one) => one.dataset.mark ?? '')")
    assert marks == ["0.2", "", "", "0.3", "", "", ""], "a change of version is seen without its colour"
    choose_overlay(page, "logprob")
    assert classes(page) == ["l0", "l0", "l0", "l1", "l2", "l3", "l5"]
    choose_overlay(page, "entropy")
    assert classes(page) == ["l0", "l0", "l1", "l1", "l2", "l3", "l5"]
    choose_overlay(page, "mismatch")
    assert classes(page) == ["a3", "a2", "a4", "a2", "a4", "a1", "a5"]
    choose_overlay(page, "mask")
    assert classes(page) == ["m-trained"] * 7
    choose_overlay(page, "advantage")
    assert classes(page) == ["a5"] * 7
    newest.click()
    by_token.click()
    assert classes(page) == ["a0", "a1", "a2", "a3", "a4", "a5", "a6"]
    by_token.click()
    without.click()
    assert classes(page) == [""] * 7, "nothing is known, and so nothing is coloured"
    assert page.complaints() == []


def test_each_bin_of_an_overlay_has_a_sign_beside_its_colour(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    for name in OVERLAYS[1:]:
        choose_overlay(page, name)
        signs = page.run(SIGNS)
        assert len(signs) >= 6
        assert len(set(signs)) == len(signs), f"{name}: {signs}"


SIGNS = """
return [...document.querySelectorAll("#legend li")].map((one) => {
  const style = getComputedStyle(one);
  return [style.borderBottomWidth, style.borderBottomStyle, style.fontStyle, style.textDecorationLine].join();
});
"""


def test_the_keys_move_from_token_to_token_and_all_that_is_known_is_said_with_units(
    server: PageServer, page: Viewer
) -> None:
    server.samples = [long_sample(7)]
    running(server)
    opened(page, server)
    buttons(page, 1)[0].click()
    slider = page.find(".profile")
    assert slider.get_attribute("aria-valuetext").startswith('token 1 of 240, "The", id 0, version 0.7, log-prob ')
    slider.send_keys(Keys.ARROW_RIGHT * 3)
    said = page.until_text(".token-readout", "token 4 of 240")
    for part in ('" 12"', "version 0.7", "log-prob \u2212", " nats (p 0.", "entropy 2.", "advantage +0.780"):
        assert part in said, part
    assert "mask trained" in said
    assert page.text(".token.current") == " 12"
    slider.send_keys(Keys.HOME, Keys.PAGE_UP * 8)
    said = page.until_text(".token-readout", "token 97 of 240")
    assert "log-prob -entropy -mismatch -mask not sampled: written by the environmentadvantage -" in said
    slider.send_keys(Keys.END)
    page.until_text(".token-readout", "token 240 of 240")
    slider.send_keys(Keys.ARROW_RIGHT)
    assert "token 240 of 240" in page.text(".token-readout")
    page.all(".token")[30].click()
    assert "mask clipped: a bound of the loss decides" in page.until_text(".token-readout", "token 31 of 240")
    assert (slider.get_attribute("aria-valuenow"), slider.get_attribute("role")) == ("31", "slider")


def test_the_rollout_as_a_whole_is_told_in_words(server: PageServer, page: Viewer) -> None:
    server.samples = [long_sample(7, oddities=["ends in repetition"])]
    running(server)
    opened(page, server)
    buttons(page, 1)[0].click()
    facts = page.run(
        "return Object.fromEntries([...document.querySelectorAll('.facts div')]"
        ".map((one) => [one.children[0].textContent, one.children[1].textContent]))"
    )
    assert facts["reward: correct"] == "1"
    assert facts["reward: format"] == "0.500"
    assert (facts["advantage"], facts["tokens"], facts["versions"]) == ("by token", "240", "0.7, 0.8, 0.9")
    counts = "201 trained, 3 clipped, 2 weight bounded, 30 not sampled, 4 rejected"
    assert facts["mask"] == counts
    assert facts["entropy, mean"].endswith(" nats")
    assert facts["signs"] == "ends in repetition"
    assert page.text("#sample-rows .signs") == "ends in repetition"


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("not_trained", "No step has trained this rollout"),
        ("not_kept", "as far as observe.token_bytes reaches"),
        ("switched_off", "observe.token_bytes = 0"),
    ],
)
def test_what_is_not_known_is_said_with_the_reason(server: PageServer, page: Viewer, lacks: str, said: str) -> None:
    server.samples = [sample(1, lacks=lacks, **UNKNOWN)]
    running(server)
    opened(page, server)
    buttons(page, 1)[0].click()
    assert said in page.text(".rollout")
    for name, kinds in (("entropy", {""}), ("mismatch", {""}), ("mask", {"m-sampled"}), ("logprob", {"l0", "l1"})):
        choose_overlay(page, name)
        assert set(classes(page)) >= kinds, name
    assert "entropy -mismatch -mask sampled" in page.text(".token-readout")


def test_an_opened_rollout_learns_what_the_learner_kept_of_it_once_it_is_trained(
    server: PageServer, page: Viewer
) -> None:
    server.samples = [sample(1, step=None, lacks="not_trained", **UNKNOWN)]
    running(server)
    opened(page, server)
    buttons(page, 1)[0].click()
    choose_overlay(page, "mask")
    assert classes(page) == ["m-sampled"] * 7
    server.samples = [sample(1)]
    page.until(lambda: classes(page) == ["m-trained"] * 7, "it is trained")
    assert "No step has trained" not in page.text(".rollout")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_overlay_is_drawn_at_every_width_in_both_themes(
    server: PageServer, page: Viewer, theme: str, width: int
) -> None:
    server.samples = [long_sample(7), long_sample(6)]
    running(server)
    page.theme(theme)
    page.resize(width, 1000)
    opened(page, server)
    buttons(page, 2)[0].click()
    for name in OVERLAYS:
        choose_overlay(page, name)
        page.run("document.querySelector(arguments[0]).scrollIntoView()", "#samples" if width > 400 else ".rollout h3")
        page.picture(f"rollout-{name}-{width}-{theme}")
        assert page.run(COLOURS, ".profile") > 2, name
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    box = page.find(".rollout").rect
    assert box["x"] >= 0, "it is read without scrolling sideways"
    assert box["x"] + box["width"] <= width
    assert page.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_enough_contrast(server: PageServer, page: Viewer, theme: str) -> None:
    kinds = ("trained", "clipped", "truncated", "rejected", "left_out", "sampled", "given")
    server.samples = [
        sample(
            1,
            completion=["a"] * 14,
            version_spans=[[2 * i, f"0.{i}"] for i in range(6)],
            mask=[[2 * place, name] for place, name in enumerate(kinds)],
            oddities=["unlikely tokens"],
        )
    ]
    running(server)
    page.theme(theme)
    opened(page, server)
    buttons(page, 1)[0].click()
    server.tell("failure", component="learner", phase="run", version="", cause="loss is nan")
    page.until(lambda: page.shown("#failure"), "the failure")
    for mode in OVERLAYS:
        choose_overlay(page, mode)
        weak = page.run(CONTRASTS)
        assert weak == [], f"{theme}, {mode}"
    page.run("document.querySelector('#token-form').hidden = false")
    page.run("document.querySelector('#token-wrong').textContent = 'wrong'")
    assert page.run(CONTRASTS) == []


def test_what_a_model_or_a_user_wrote_is_text_whatever_it_looks_like(server: PageServer, page: Viewer) -> None:
    script, image = "<script>document.title = 'owned'</script>", "<img src=x onerror=\"document.title = 'owned'\">"
    server.samples = [
        sample(1, completion=[script, image, "</td></tr></table>", "\u202e", ""], prompt=image, stream=script)
    ]
    running(server)
    dropped = {"groups_dropped": {image: 1}}
    server.status(**standing(120, queue=dropped))
    opened(page, server)
    page.until(lambda: page.all("#sample-rows button"), "samples").pop().click()
    server.tell("notice", text=image)
    server.tell("failure", component=script, phase="run", version="", cause=image)
    page.until_text("#failure", "<img")
    assert page.text("#sample-rows .token") == script
    assert image in page.text("#sample-rows .opened")
    assert image in page.text("#drop-rows")
    assert image in page.text("#notices")
    assert page.all("main img, main script, header img") == []
    assert page.run("return document.title") == "run: step 120"
    page.picture("hostile")
    assert page.complaints() == []


def test_the_policy_forbids_what_would_get_past_it(server: PageServer, page: Viewer) -> None:
    running(server)
    opened(page, server)
    page.run("""
        const image = document.createElement("img");
        image.src = "x"; image.setAttribute("onerror", "document.title = 'owned'");
        const script = document.createElement("script");
        script.textContent = "document.title = 'owned'";
        document.body.append(image, script);
    """)
    said = page.until(page.complaints, "the browser says what it refused")
    assert any("Content Security Policy" in one for one in said)
    assert page.run("return document.title").startswith("run")


def test_new_samples_come_by_themselves_and_older_ones_on_demand(server: PageServer, page: Viewer) -> None:
    server.samples = [sample(number) for number in range(119, -1, -1)]
    running(server)
    opened(page, server)
    page.until(lambda: len(page.all("#sample-rows tr")) == 50, "the newest 50")
    page.find("#sample-rows button").click()
    server.samples[:0] = [sample(121), sample(120)]
    page.until(lambda: keys(page)[:3] == ["121/0/0", "120/0/0", "119/0/0"], "two new ones")
    assert page.find("#sample-rows button[aria-expanded=true]").text == "119/0/0", "what is open stays open"
    page.find("#sample-rows button[aria-expanded=true]").click()
    page.find("#samples-older").click()
    page.until(lambda: len(page.all("#sample-rows tr")) > 60, "older ones")
    page.find("#samples-older").click()
    page.until(lambda: not page.shown("#samples-older"), "all of them")
    numbers = [int(key.split("/")[0]) for key in keys(page)]
    assert numbers == sorted(numbers, reverse=True)
    assert set(numbers) >= {0, 119, 120, 121}
    page.find("#samples-live").click()
    server.samples.insert(0, sample(122))
    before = page.text("#progress")
    server.status(**standing(121))
    page.until(lambda: page.text("#progress") != before, "the next status")
    assert keys(page)[0] == "121/0/0"


def keys(page: Viewer) -> list[str]:
    return page.run("return [...document.querySelectorAll('#sample-rows tr[data-key]')].map((one) => one.dataset.key)")


def test_a_sample_of_many_tokens_shows_some_and_the_rest_on_demand(server: PageServer, page: Viewer) -> None:
    server.samples = [sample(1, completion=["a "] * 9000)]
    running(server)
    opened(page, server)
    page.until(lambda: page.all("#sample-rows button"), "samples").pop().click()
    for shown in (4000, 8000, 9000):
        assert page.run("return document.querySelectorAll('.token').length") == shown
        for more in page.all(".answer button"):
            more.click()
