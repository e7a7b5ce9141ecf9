"""A run whose rollouts are episodes: what is trained is what was sampled, over all turns; and bad ones end alone."""

import json
import shutil
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
import torch
from support.data.chat_model import write_rows
from support.engines.calling_model import prepare_calling_model
from support.queue.completion_rows import rows_of
from support.repository import TESTS
from support.runs.finished_run import Finished, run
from transformers import AutoModelForCausalLM

from streamrl.models.tokenizer import load_tokenizer
from streamrl.services.commands.replay import replay
from streamrl.services.run.folder import RunFolder
from streamrl.types import TokenOrigin

pytestmark = pytest.mark.ray

RUN = """
name = "test"
[model]
path = "model"
[data]
train = "rows.jsonl"
eval = "rows.jsonl"
[environment]
name = "my_games:Game"
max_turns = 4
max_tokens = 64
[reward]
function = "environment"
[rollout]
group_size = 4
slots = 32
kv_bytes = 8388608
[rollout.sampling]
max_new_tokens = 12
[learner]
steps = 20
groups_per_step = 8
[eval]
every = 10
max_items = 10
"""


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with a model that has a chat template, and environments."""
    folder = tmp_path_factory.mktemp("games")
    prepare_calling_model(folder / "model")
    (folder / "run.toml").write_text(RUN)
    write_rows(folder / "rows.jsonl", [{"prompt": "hi", "answer": str(number)} for number in range(40)])
    text = (TESTS / "support/environments/games.py").read_text()
    own = text.replace("import Done\n", "import Done, ToAgent\n")
    (folder / "my_games.py").write_text(f"{own}\n\n{GAME}")
    return folder


GAME = '''
class Game(Echo):
    """Answers `hi`, and fails now and then. The reward is the share of messages without a call."""

    async def step(self, message):
        call = int(self._row["answer"])
        said = await super().step(message)
        if FAILS and call % 5 == 0:
            return await bad_step(("raises", "dies", "nan", "no role")[call // 5 % 4])
        if isinstance(said, Done):
            plain = sum("tool_calls" not in one for one in self._heard)
            return Done(plain / 3, {"plain": plain})
        return said


FAILS = False


class Pair:
    """`left` and `right` speak twice each; `left` has the reward 1, `right` 0."""

    def reset(self, row):
        self.left = 4
        return ToAgent("left", "hi")

    def step(self, message):
        self.left -= 1
        if self.left == 0:
            return Done(rewards={"left": 1.0, "right": 0.0})
        return ToAgent(("right", "left")[self.left % 2 == 0], "hi")

    def truncated(self):
        return Done(rewards={"left": 0.75, "right": 0.25})
'''


@pytest.fixture(scope="module")
def played(games: Path) -> Finished:
    done = run(games, "up", "run.toml")
    assert done.code == 0, done.output
    return done


def test_it_trains_to_its_end_and_evaluates(played: Finished) -> None:
    assert len(played.metrics()) == 20
    assert "held-out score" in played.output
    turns = Counter(row["turns"] for row in rows_of(played.folder))
    assert set(turns) >= {1, 2, 3}
    assert max(line["staleness/max"] for line in played.metrics()) <= 2
    told = [line for line in played.metrics() if "environment/turns" in line]
    assert told
    assert all(1.0 <= line["environment/turns"] <= 4.0 and line["environment/forks"] == 0 for line in told)


def test_what_the_environment_says_stands_between_what_was_sampled_and_is_not_trained(played: Finished) -> None:
    tokenizer = load_tokenizer(played.folder.parent.parent / "model")
    several = [row for row in rows_of(played.folder) if row["turns"] > 1]
    assert several
    for row in several:
        pairs = zip(row["token_origin"], row["token_ids"], strict=True)
        pieces = [(origin, [one for _, one in piece]) for origin, piece in groupby(pairs, lambda pair: pair[0])]
        assert [origin for origin, _ in pieces] == [0, 1, *([2, 1] * (row["turns"] - 1))]
        for origin, ids in pieces:
            if origin == TokenOrigin.ENVIRONMENT:
                text = tokenizer.decode(torch.tensor(ids).numpy(), special_tokens=True)
                assert text == "\nuser=hi\nassistant="


def test_logged_logprobs_are_the_models_own_over_all_turns(played: Finished) -> None:
    model = AutoModelForCausalLM.from_pretrained(played.folder.parent.parent / "model")
    rows = [row for row in rows_of(played.folder) if {span["step"] for span in row["version_spans"]} == {0}]
    several = [row for row in rows if row["turns"] > 1][:16]
    assert several
    for row in several:
        ids = torch.tensor([row["token_ids"]])
        with torch.no_grad():
            logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        sampled = torch.tensor(row["token_origin"][1:]) == TokenOrigin.SAMPLED
        assert torch.allclose(logprobs[sampled], torch.tensor(row["rollout_logprobs"][1:])[sampled], atol=1e-5)


def test_a_run_that_is_trained_again_on_its_rows_is_the_same_to_the_bit(played: Finished) -> None:
    steps = list(replay(RunFolder.open(played.folder)))
    assert len(steps) == 20
    assert all(step.same and step.difference == 0.0 for step in steps)


def test_the_reward_is_the_environments(played: Finished) -> None:
    records = [json.loads(row["payload"])["environment"] for row in rows_of(played.folder)]
    ended = [record for record in records if "limit" not in record]
    assert ended
    assert all(record["reward"] == record["components"]["plain"] / 3 for record in ended)
    assert all(record["reward"] == 0.5 for record in records if "limit" in record)  # what `truncated` gives


@pytest.mark.long
def test_agents_of_one_episode_have_rows_and_rewards_of_their_own(games: Path) -> None:
    options = ("--name", "pair", "--environment.name", "my_games:Pair", "--learner.steps", "6")
    done = run(games, "up", "run.toml", *options, name="pair")
    assert done.code == 0, done.output
    assert len(done.metrics()) == 6
    rows = list(rows_of(done.folder))
    for row in rows:
        record = json.loads(row["payload"])["environment"]
        expected = {"left": (1.0, 0.75), "right": (0.0, 0.25)}[record["agent"]]
        assert record["reward"] == expected["limit" in record]
        assert row["branch"] == ("left", "right").index(record["agent"])
    both = Counter(row["rollout_id"] for row in rows)
    assert set(both.values()) == {1, 2}  # a first message that is cut off leaves the other one without a word
    # What the learner was given is each row's own.
    means = [line["reward/mean"] for line in done.metrics()]
    assert all(0.0 < mean < 1.0 for mean in means)
    assert all(step.same for step in replay(RunFolder.open(done.folder)))


@pytest.mark.long
def test_environments_that_fail_end_alone_and_the_run_goes_on(games: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(games, folder, ignore=shutil.ignore_patterns("runs"))
    module = folder / "my_games.py"
    module.write_text(module.read_text().replace("FAILS = False", "FAILS = True"))
    done = run(folder, "up", "run.toml", "--reward.max_failed", "0.9", "--environment.retries", "1")
    assert done.code == 0, done.output
    assert len(done.metrics()) == 20
    ends = Counter(row["finish_reason"] for row in rows_of(done.folder))
    assert ends["error"] > 0
    assert ends["length"] + ends["stop"] > ends["error"]
    logs = "".join(path.read_text() for path in (done.folder / "logs").glob("rollout-*"))
    for said in ("raised ValueError: no such move", "its process died: signal 9", "the reward is nan", "its role is"):
        assert said in logs
    assert "my_games:Game" in logs
    assert "turn 1" in logs


def test_an_environment_that_cannot_be_had_ends_the_run_with_its_reason(games: Path) -> None:
    done = run(games, "up", "run.toml", "--name", "none", "--environment.name", "my_games:Unmade", name="none")
    assert done.code == 2
    assert "raised RuntimeError: no board" in done.output


def test_a_model_without_a_chat_template_is_refused_with_the_way_out(games: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(games, folder, ignore=shutil.ignore_patterns("runs"))
    (folder / "model/chat_template.jinja").unlink()
    done = run(folder, "up", "run.toml")
    assert done.code == 2
    assert "put a chat_template.jinja beside the model" in done.output
