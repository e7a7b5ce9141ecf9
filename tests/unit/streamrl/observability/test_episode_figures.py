"""Figures of episodes from the counters of replicas, also of replicas that are replaced."""

from streamrl.observability.episode_figures import EpisodeFigures


def status(name: str, **counts: int) -> dict:
    return {"name": name, "busy_s": 1.0, **{f"environment_{key}": count for key, count in counts.items()}}


def test_means_are_of_the_episodes_that_ended_since() -> None:
    figures = EpisodeFigures()
    figures.take([status("a", episodes=4, turns=8, faults=1), status("b", episodes=1, turns=7, faults=0)])
    assert figures.since() == {"environment/episodes": 5, "environment/turns": 3.0, "environment/faults": 1}
    figures.take([status("a", episodes=4, turns=8, faults=1)])
    figures.take([status("a", episodes=6, turns=11, faults=1)])
    assert figures.since() == {"environment/episodes": 2, "environment/turns": 1.5, "environment/faults": 0}


def test_a_replica_that_begins_anew_counts_from_nothing() -> None:
    figures = EpisodeFigures()
    figures.take([status("a", episodes=10, turns=10)])
    figures.since()
    figures.take([status("a", episodes=3, turns=6)])
    assert figures.since() == {"environment/episodes": 3, "environment/turns": 2.0}


def test_faults_before_the_first_episode_ended_are_not_lost() -> None:
    figures = EpisodeFigures()
    figures.take([status("a", episodes=0, faults=2)])
    assert figures.since() == {}
    figures.take([status("a", episodes=1, faults=2)])
    assert figures.since() == {"environment/faults": 2, "environment/episodes": 1}


def test_a_run_without_episodes_has_none() -> None:
    figures = EpisodeFigures()
    figures.take([status("a")])
    assert figures.since() == {}
