"""Which node a replica goes to, and what is said of one that has none."""

import pytest

from streamrl.scheduling.placement import (
    SHOWN,
    Supply,
    fits,
    fullest,
    impossible,
    shared_out,
    standing,
    too_few_nodes,
)

DEMAND = {"GPU": 1.0, "rollout-node": 0.5}


def node(name: str, free: float = 2.0, **total: float) -> Supply:
    """A node with GPUs, of which `free` are."""
    have = {"GPU": 2.0, "CPU": 8.0, "rollout-node": 4.0, "memory": 1e9, "node:10.0.0.1": 1.0, **total}
    return Supply(name, f"host-{name}", have, {**have, "GPU": free})


@pytest.mark.parametrize(
    ("demand", "times"),
    [
        ({"GPU": 1.0}, 2),
        ({"GPU": 0.1}, 20),
        ({"GPU": 2.5}, 0),
        ({"GPU": 1.0, "TPU": 1.0}, 0),
        ({"CPU": 3.0}, 2),
        ({"part": 0.1}, 3),
    ],
)
def test_a_demand_fits_as_often_as_its_scarcest_part(demand: dict[str, float], times: int) -> None:
    assert fits(demand, node("a", part=0.3).total) == times
    assert fits({"GPU": 1e-4}, {"GPU": 0.0}) == 0


def test_a_demand_of_nothing_fits_everywhere() -> None:
    assert impossible({}, [Supply("a", "host", {}, {})]) == ""
    assert fullest({}, [Supply("a", "host", {}, {})]) == "a"


def test_a_demand_is_impossible_only_where_no_single_node_has_it_all_when_nobody_else_is_there() -> None:
    assert impossible(DEMAND, [node("a", free=0.0)]) == ""
    assert impossible({"GPU": 3.0}, [node("a"), node("b", GPU=3.0)]) == ""
    why = impossible({"GPU": 3.0}, [node("aaaaaaaaaaaa", free=1.0), node("b")])
    assert why == (
        "a replica takes { GPU = 3 } of its node, and no node has as much; free of what each node has: "
        "host-aaaaaaaaaaaa (aaaaaaaa): CPU 8 of 8, GPU 1 of 2, rollout-node 4 of 4; "
        "host-b (b): CPU 8 of 8, GPU 2 of 2, rollout-node 4 of 4"
    )


def test_what_waits_is_told_with_the_supply_of_each_node_of_not_too_many() -> None:
    told = standing(DEMAND, [node(f"n{number}", free=0.0) for number in range(SHOWN + 3)])
    assert told.startswith("it takes { GPU = 1, rollout-node = 0.5 } of its node; free of what each node has: host-n0")
    assert told.count("GPU 0 of 2") == SHOWN
    assert told.endswith("; and 3 nodes more")
    assert standing(DEMAND, []).endswith("there is no node")
    assert "host (a): nothing" in standing(DEMAND, [Supply("a", "host", {"memory": 1.0}, {})])


def test_the_fullest_node_with_room_is_packed_first() -> None:
    nodes = [node("a", free=2.0), node("b", free=1.0), node("c", free=0.5)]
    assert fullest(DEMAND, nodes) == "b"
    assert fullest(DEMAND, nodes, taken=["b"]) == "a"
    assert fullest(DEMAND, nodes, taken=["b", "a", "a"]) is None
    assert fullest(DEMAND, []) is None


def test_replicas_that_are_made_at_once_fill_one_node_after_the_other() -> None:
    nodes, sent = [node("a"), node("b"), node("c")], list[str]()
    for _ in range(6):
        chosen = fullest(DEMAND, nodes, sent)
        assert chosen is not None
        sent.append(chosen)
    assert sent == ["a", "a", "b", "b", "c", "c"]


def test_ranks_are_shared_out_to_the_runs_own_node_and_those_with_most_room() -> None:
    nodes = [node("b", free=1.0), node("home", free=0.0), node("a"), node("c", free=0.5), node("d")]
    assert shared_out("home", 1, {"GPU": 1.0}, nodes) == ["home"]
    assert shared_out("home", 3, {"GPU": 1.0}, nodes) == ["home", "a", "d"]
    assert shared_out("home", 4, {"GPU": 1.0}, nodes) == ["home", "a", "d", "b"]
    assert shared_out("home", 5, {"GPU": 1.0}, nodes) == ["home", "a", "d", "b"], "the last has no room"
    assert shared_out("home", 5, {}, nodes) == ["home", "a", "b", "c", "d"]


def test_ranks_stay_where_they_were_though_what_they_had_is_not_free_yet() -> None:
    nodes = [node("home"), node("a"), node("b", free=0.0)]
    assert shared_out("home", 2, {"GPU": 1.0}, nodes, ["home", "b"]) == ["home", "b"]
    assert shared_out("home", 2, {"GPU": 1.0}, nodes, ["home", "gone"]) == ["home", "a"]


def test_nodes_that_can_never_have_ranks_are_told() -> None:
    nodes = [node("home", GPU=0.0), node("a"), node("b", GPU=1.0)]
    assert too_few_nodes(2, {"GPU": 2.0}, nodes, "home") == ""
    why = too_few_nodes(3, {"GPU": 2.0}, nodes, "home")
    assert why.startswith(
        "ranks take { GPU = 2 } of each node, and 2 have as much; free of what each node has: host-home"
    )
