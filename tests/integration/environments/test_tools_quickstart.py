"""The quickstart with a tool, as a user runs it: it learns to call the calculator, from the ids that were sampled."""

import asyncio
import json
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from support.queue.completion_rows import rows_of
from support.repository import ROOT
from support.runs.finished_run import Finished, run

from streamrl.conversations.tool_calls import MessageReader
from streamrl.environments.calculator import calculator
from streamrl.environments.tool_environment import ToolEnvironment
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.services.run.layout import MODEL_FOLDER
from streamrl.types import TokenOrigin

pytestmark = [pytest.mark.ray, pytest.mark.long]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    limits = ["--eval.max_items", "200", "--name", "test"]
    folder = tmp_path_factory.mktemp("tools")
    return run(folder, "up", str(ROOT / "configs/tools-quickstart.toml"), *limits, limit_s=600.0)


def test_it_learns_to_use_the_calculator(done: Finished) -> None:
    assert done.code == 0, done.output
    scores = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    held_out = [line["eval/score"] for line in scores if "eval/score" in line]
    assert held_out[0] <= 0.4
    assert held_out[-1] >= 0.8


def test_in_each_rollout_the_calculator_answers_what_the_ids_spell(done: Finished) -> None:
    """Ids are trained where they were sampled, and the environment heard just them: else its answers were others."""
    tokenizer = load_tokenizer(done.folder / MODEL_FOLDER)
    rows = list(rows_of(done.folder))
    answered = sum(answers_in(row, tokenizer) for row in rows)
    print(f"{answered} calls in {len(rows)} rollouts")
    assert len(rows) >= 80 * 32 * 8
    assert answered >= len(rows) // 2


def answers_in(row: dict[str, Any], tokenizer: TextTokenizer) -> int:
    """The calls of a row that have the calculator's answers behind them."""
    pairs = zip(row["token_origin"], row["token_ids"], strict=True)
    pieces = [(origin, np.array([one for _, one in piece])) for origin, piece in groupby(pairs, lambda pair: pair[0])]
    found = 0
    for (origin, said), (_, after) in pairwise(pieces):
        if origin == TokenOrigin.SAMPLED:
            answers = answers_to(tokenizer.decode(said))
            told = "".join(f"<|tool|>{answer}" for answer in answers)
            assert tokenizer.decode(after, special_tokens=True) == f"{told}<|assistant|>", row["prompt_id"]
            found += len(answers)
    return found


def answers_to(text: str) -> list[str]:
    """What the environment says to a message."""
    calls = MessageReader("", {"calculator": None}).parse(0, text, "stop").calls
    told = [{"id": one.id, "function": {"name": one.name, "arguments": json.loads(one.arguments)}} for one in calls]
    answers = asyncio.run(ToolEnvironment([calculator]).step({"role": "assistant", "content": "", "tool_calls": told}))
    assert isinstance(answers, list), text
    return [str(answer["content"]) for answer in answers]
