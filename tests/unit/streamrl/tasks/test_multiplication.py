"""The multiplication task: products, and demonstrations that call the calculator."""

import json

from streamrl.conversations.tool_calls import MessageReader
from streamrl.environments.calculator import calculator
from streamrl.tasks.base import is_demonstrated
from streamrl.tasks.resolve import resolve_task


def test_payloads_hold_the_product_and_demonstrations_find_it_with_the_calculator() -> None:
    task = resolve_task("multiplication", 0.1)
    assert is_demonstrated(task)
    assert (task.num_train, task.num_held_out) == (9000, 1000)
    for index in (0, 1, 4321, 8999):
        prompt = task.train(index)
        left, right = map(int, prompt.text.split("*"))
        assert json.loads(prompt.payload) == {"answer": str(left * right)}

    turns = [task.demonstration(task.train(index)) for index in range(task.num_train)]
    calls = [one for one in turns if len(one) == 2]
    assert 0.18 < len(calls) / len(turns) < 0.22
    for call, answer in calls[:50]:
        (found,) = MessageReader("0", {}).parse(0, call, "stop").calls
        assert found.name == "calculator"
        assert calculator(**json.loads(found.arguments)) == answer


def test_no_held_out_product_is_trained() -> None:
    task = resolve_task("multiplication", 0.1)
    train = {task.train(index).text for index in range(task.num_train)}
    held_out = {task.held_out(index).text for index in range(task.num_held_out)}
    assert not train & held_out
    assert train | held_out == {f"{a}*{b}" for a in range(100) for b in range(100)}
