"""What a terminal shows of a run, from its events alone."""

import io
import json
from typing import Any, Literal

import pytest
from rich.console import Console

from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import Config, QueueConfig
from streamrl.services.commands.view import JsonView, PlainView, choose_view, page, summary_text
from streamrl.services.run.view_state import ViewState, human_bytes, human_seconds, number

SECOND = 10**9


def config() -> Config:
    """64 rollouts a step, 200 steps."""
    return Config(name="demo", learner=LearnerConfig(steps=200, groups_per_step=8), rollout=RolloutConfig(group_size=8))


def step(number: int, **metrics: Any) -> dict[str, Any]:
    """A step event; steps are a tenth of a second apart."""
    return {"kind": "step", "step": number, "time_ns": number * SECOND // 10, **metrics}


def state_after(*events: dict[str, Any]) -> ViewState:
    state = ViewState(config())
    for event in events:
        state.apply(event)
    return state


def picture(state: ViewState) -> str:
    console = Console(file=io.StringIO(), width=110)
    with console.capture() as capture:
        console.print(page(state))
    return capture.get()


def test_rates_and_time_left_come_from_the_events_clock() -> None:
    state = state_after(*(step(count) for count in range(1, 101)))
    assert state.steps_per_s() == pytest.approx(10.0)
    assert state.rollouts_per_s() == pytest.approx(640.0)
    assert state.remaining_s() == pytest.approx(10.0)


def test_nothing_is_claimed_before_there_are_figures() -> None:
    for state in (state_after(), state_after(step(1))):
        assert (state.steps_per_s(), state.rollouts_per_s(), state.remaining_s()) == (None, None, None)
        assert state.who_waits() == "-"
        assert picture(state)


def test_who_waits_for_whom_is_a_share_of_the_time() -> None:
    figures = {"time/step": 0.2, "time/wait": 0.05, "rollout/idle_share": 0.4}
    state = state_after(step(1, **figures), step(2, **figures))
    assert state.who_waits() == "learner waits for rows 25%, replicas wait for admission 40%"


def test_a_null_figure_is_not_shown_as_zero() -> None:
    state = state_after(step(1, **{"reward/mean": None, "time/step": 0.1, "time/wait": None}))
    assert state.learner_wait_share() is None
    assert " reward - " in " ".join(picture(state).split())


def test_the_page_shows_each_figure_that_the_issue_names() -> None:
    metrics = {
        "version": "0.7",
        "reward/mean": 0.625,
        "staleness/mean": 1.25,
        "staleness/max": 2,
        "queue/rows": 512,
        "queue/bytes": 3 * 2**20,
        "rollout/tokens_per_s": 12345.0,
        "time/step": 0.1,
        "time/wait": 0.01,
    }
    replicas = [{"name": "rollout-0", "state": "SERVING", "version": "0.6", "running": 31}]
    state = state_after(
        {"kind": "phase", "name": "running"},
        {"kind": "eval", "score": 0.4},
        step(6, **metrics),
        step(7, **metrics, **{"eval/score": 0.55}),
        {"kind": "replicas", "replicas": replicas},
        {"kind": "notice", "text": "[odd] markup"},
    )
    shown = picture(state)
    for part in ("0.625", "0.400 -> 0.550", "0.7", "1.25 / 2", "512 rows, 3.0 MiB", "12345", "640", "10%"):
        assert part in shown
    for part in ("rollout-0", "SERVING", "0.6", "31", "step 7 of 200", "[odd] markup", "19 s"):
        assert part in shown


def test_the_warm_up_is_shown_with_its_score_until_the_stream_starts() -> None:
    warm = {"kind": "warmup", "step": 30, "score": 0.21}
    unscored = {"kind": "warmup", "step": 31, "score": None}
    assert "warm-up, step 30, score 0.210" in picture(state_after(warm))
    assert "warm-up, step 31, score 0.210" in picture(state_after(warm, unscored))
    assert "warm-up, step 31, score -" in picture(state_after(unscored))
    assert "warm-up" not in picture(state_after(warm, step(1)))


def test_the_bar_has_a_line_of_its_own() -> None:
    lines = picture(state_after(step(100))).splitlines()
    (bar,) = [line for line in lines if "\u2501" in line]
    assert "reward" not in bar
    assert len({len(line) for line in lines}) == 1


def test_plain_lines_are_one_for_fifty_steps_or_two_seconds() -> None:
    out = io.StringIO()
    view = PlainView(config(), out)
    for count in range(1, 201):
        view.show({**step(count), "time_ns": count})
    assert len(out.getvalue().splitlines()) == 4
    view.show({**step(201), "time_ns": 2 * SECOND + 200})
    view.show({**step(202), "time_ns": 2 * SECOND + 201})
    assert len(out.getvalue().splitlines()) == 5


def test_plain_lines_tell_phases_scores_and_notices_and_survive_a_stranger_event() -> None:
    out = io.StringIO()
    view = PlainView(config(), out)
    view.show(None)
    view.show({"kind": "phase", "name": "ray"})
    view.show({"kind": "warmup", "step": 10, "score": 0.3})
    view.show({"kind": "warmup", "step": 11, "score": None})
    view.show({"kind": "eval", "score": 0.5, "step": 0})
    view.show({"kind": "failure", "component": "reward", "cause": "no workers"})
    view.show({"kind": "from the future"})
    assert out.getvalue().splitlines() == [
        "[ray]",
        "warm-up step 10  score 0.300",
        "held-out score 0.500 at step 0",
        "! reward failed",
    ]


def test_json_is_chosen_when_asked_and_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    view = choose_view(config(), as_json=True, stream=out)
    view.show({"kind": "phase", "name": "ray"})
    view.show(None)
    assert isinstance(view, JsonView)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [{"kind": "phase", "name": "ray"}]
    assert isinstance(choose_view(config(), as_json=False, stream=out), PlainView)


def test_the_summary_shows_what_there_is_and_a_dash_for_the_rest() -> None:
    text = summary_text({"eval_before": 0.4, "eval_after": 0.91, "wall_s": 187.0, "learner_wait_share": 0.12})
    assert "held-out score            0.400 -> 0.910" in text
    assert "wall clock                3:07" in text
    assert "learner waited            12%" in text
    assert "reward curve              -" in text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (human_bytes(None), "-"),
        (human_bytes(1023), "1023 B"),
        (human_bytes(1536), "1.5 KiB"),
        (human_bytes(3 * 2**40), "3.0 TiB"),
        (human_seconds(None), "-"),
        (human_seconds(59.4), "59 s"),
        (human_seconds(3600), "1:00:00"),
        (number(None), "-"),
        (number(0.0), "0.000"),
    ],
)
def test_figures_are_for_people(shown: str, text: str) -> None:
    assert shown == text


def of(durability: Literal["disk", "memory"]) -> Config:
    return Config(name="demo", queue=QueueConfig(durability=durability))


def test_a_run_that_a_power_cut_can_hurt_says_so_wherever_it_is_looked_at() -> None:
    stream = io.StringIO()
    PlainView(of("memory"), stream)
    assert stream.getvalue() == (
        "! durability memory: what was acknowledged survives kill -9, but not a crash of the machine or a power cut\n"
    )
    assert "not a crash of the machine" in " ".join(picture(ViewState(of("memory"))).split())
    assert "survives kill -9, but not" in summary_text({"durability": of("memory").promise})


def test_a_run_on_disk_says_what_it_promises_without_a_warning() -> None:
    stream = io.StringIO()
    PlainView(of("disk"), stream)
    assert stream.getvalue() == ""
    assert "durability disk" in " ".join(picture(ViewState(of("disk"))).split())
    assert "survives kill -9 and a power cut" in summary_text({"durability": of("disk").promise})


def test_a_run_with_replicas_on_other_nodes_says_whose_disk_its_rows_hang_on() -> None:
    config = Config(name="demo", rollout=RolloutConfig(resources={"far": 1.0}))
    assert "rows of a replica on another node are generated again" in summary_text({"durability": config.promise})


@pytest.mark.parametrize("kind", ["resumed", "autoscaling"])
def test_a_resume_and_a_change_of_replicas_are_a_line_and_a_notice(kind: str) -> None:
    stream = io.StringIO()
    view = PlainView(config(), stream)
    event = {"kind": kind, "text": "from the checkpoint of step 4, with 2 replicas"}
    view.show(event)
    assert stream.getvalue() == f"! {event['text']}\n"
    assert "checkpoint of step 4, with 2 replicas" in picture(state_after(event))
