"""The task of `make bench-learning` that is made of another package's items."""

import pytest
from learning_study.tasks.reasoning_tasks import ChainSum, ProceduralTask

from streamrl.config.estimates.model_presets import PRESETS
from streamrl.errors import ConfigError
from streamrl.tasks.base import is_demonstrated


def entries(*sums: tuple[str, int]) -> list[dict[str, str]]:
    asks = "State the final answer to the following arithmetic problem: "
    return [{"question": f"{asks}{text} =", "answer": str(answer)} for text, answer in sums]


def task(held_out: float = 0.25) -> ProceduralTask:
    given = entries(("1 + 2", 3), ("4 - 9", -5), ("1 + 2", 3), ("7 - 7", 0), ("5 + 5", 10))
    return ProceduralTask("sums", given, held_out)


def test_of_the_question_the_expression_is_kept():
    assert task().held_out(0).text == "1 + 2 ="


def test_an_item_that_comes_twice_is_on_one_side_alone():
    made = task()
    assert (made.num_held_out, made.num_train) == (1, 3)
    assert [made.train(index).text for index in range(3)] == ["4 - 9 =", "7 - 7 =", "5 + 5 ="]


def test_the_demonstration_is_the_answer_that_the_reward_gets():
    made = task()
    assert is_demonstrated(made)
    assert made.demonstration(made.train(0)) == "-5"
    assert made.train(0).payload == '{"answer": "-5"}'


def test_the_fingerprint_changes_with_an_answer_and_with_what_is_held_out():
    wrong = ProceduralTask("sums", entries(("1 + 2", 4), ("4 - 9", -5), ("7 - 7", 0), ("5 + 5", 10)), 0.25)
    assert len({task().fingerprint(), task(0.5).fingerprint(), wrong.fingerprint()}) == 3
    assert task().fingerprint() == task().fingerprint()


@pytest.mark.parametrize("held_out", [1.0, 2.0])
def test_a_share_that_leaves_nothing_to_train_on_is_refused(held_out):
    with pytest.raises(ConfigError, match=rf"held_out = {held_out} leaves none of 4 items"):
        task(held_out)


def test_chain_sum_fits_the_preset_model():
    pytest.importorskip("reasoning_gym", reason="pip install -e '.[bench]'")
    made, preset = ChainSum(0.25), PRESETS["tiny-qwen3"]
    prompts = [made.train(index) for index in range(made.num_train)]
    prompts += [made.held_out(index) for index in range(made.num_held_out)]
    assert made.num_held_out > 900
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        left, first, middle, second, right, _ = prompt.text.split()
        signs = {"+": 1, "-": -1}
        answer = int(left) + signs[first] * int(middle) + signs[second] * int(right)
        assert made.demonstration(prompt) == str(answer)
        assert set(prompt.text + str(answer)) <= set(preset.characters)
