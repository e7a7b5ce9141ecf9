"""A reward model's scores: transformers' own, whatever shares a batch; beside a rule; in processes of their own."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.learner.probe_learner import warm
from support.repository import ROOT
from support.rewards.reward_models import item_of, policy_folder, random_reward_model, random_rows
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from streamrl.buffers.rows.gather import ScoringRows
from streamrl.config import Config, load_args
from streamrl.config.schema.run import RewardModelConfig
from streamrl.errors import ConfigError, DataError, NonFiniteError
from streamrl.learner.supervised.preference_pairs import read_pairs
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.reference import Reference
from streamrl.rewards.base import RewardItem, component_columns, with_components
from streamrl.rewards.build import make_scorer
from streamrl.rewards.model import RewardModel
from streamrl.rewards.pool import RewardPool
from streamrl.services.cli.main import run_app
from streamrl.services.launch.preflight import check
from streamrl.services.reward.items import reward_items
from streamrl.types import Score, ScoreStatus

SEEDS = range(3)
RULES = '''
"""Rules beside a reward model."""

import torch


def threads(completion, **_):
    return float(torch.get_num_threads())


def parts(completion, **_):
    return {"short": float(len(completion) < 2), "odd": 0.5}


def total(completion, **_):
    return {"reward": 3.0, "seen": 9.0}


def taken(completion, **_):
    return {"reward_model": 1.0}


def bad(completion, **_):
    return None if completion == "2" else 1.0
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_reward_model(tmp_path_factory.mktemp("scores") / "reward-model", seed=1, head=0.1)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return load_tokenizer(folder)


@pytest.fixture(autouse=True)
def rules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path_factory.mktemp("rules")
    (place / "rules_beside.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(place))
    return place


def changed(folder: Path, to: Path, **values: object) -> Path:
    """The same reward model with other values in its config.json."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **values}))
    return to


def encoder(to: Path) -> Path:
    """A classifier of another kind: it looks both ways, and scores by its first token."""
    torch.manual_seed(2)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=22, max_position_embeddings=32, num_labels=1, initializer_range=0.5, **sizes)
    BertForSequenceClassification(config).save_pretrained(to)
    return to


# ---- scores


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["decoder", "without padding", "encoder"])
def test_scores_are_those_of_transformers_for_each_row_alone(
    seed: int, kind: str, folder: Path, tmp_path: Path
) -> None:
    made = {
        "decoder": lambda: folder,
        "without padding": lambda: changed(folder, tmp_path / "other", pad_token_id=None),
        "encoder": lambda: encoder(tmp_path / "encoder"),
    }
    place = made[kind]()
    rows = random_rows(seed, 40)
    model = AutoModelForSequenceClassification.from_pretrained(place).eval()
    with torch.inference_mode():
        alone = [model(torch.from_numpy(row).long()[None]).logits.item() for row in rows]
    assert RewardModel(place).score(rows) == pytest.approx(alone, abs=1e-5)
    assert len({round(score, 3) for score in alone}) > 30


@pytest.mark.parametrize("seed", SEEDS)
def test_a_score_does_not_depend_on_what_shares_its_batch(seed: int, folder: Path) -> None:
    rows = random_rows(seed, 60, longest=40)
    model = RewardModel(folder)
    together = model.score(rows)
    assert together == pytest.approx([model.score([row])[0] for row in rows], abs=1e-5)
    order = np.random.default_rng(seed).permutation(len(rows))
    assert model.score([rows[index] for index in order]) == pytest.approx([together[i] for i in order], abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_share_no_forward_are_equal_to_the_bit(seed: int, folder: Path) -> None:
    rows = random_rows(seed, 60)
    apart = RewardModel(folder, rows_at_once=1)
    assert apart.score(rows) == [apart.score([row])[0] for row in rows]


def test_nothing_is_nothing(folder: Path) -> None:
    assert RewardModel(folder).score([]) == []


# ---- rows that have no score


def test_rows_that_cannot_be_scored_fail_alone_and_are_named(folder: Path) -> None:
    good, long = np.array([1, 5, 2], np.int32), np.ones(10, np.int32)
    rows = [good, long, np.zeros(0, np.int32), np.array([1, 22], np.int32), np.array([-1], np.int32), good]
    model = RewardModel(folder, max_tokens=9)
    found = model.score(rows)
    assert found[0] == pytest.approx(found[5], abs=1e-5)
    assert found[0] == pytest.approx(model.score([good])[0], abs=1e-5)
    assert all(isinstance(one, DataError) for one in found[1:5])
    assert [str(one)[:56] for one in found[1:5]] == [
        "row 1 has 10 tokens, more than the 9 that the reward mod",
        "row 2 has no tokens for the reward model",
        "row 3 has token 22, and the reward model has 22 tokens",
        "row 4 has token -1, and the reward model has 22 tokens",
    ]


def test_a_row_beyond_the_models_own_context_has_no_score(folder: Path) -> None:
    model = RewardModel(folder)
    assert isinstance(model.score([np.ones(64, np.int32)])[0], float)
    (found,) = model.score([np.ones(65, np.int32)])
    assert "65 tokens, more than the 64" in str(found)
    with pytest.raises(ConfigError, match=r"reward\.model\.max_tokens = 65, .* context of 64"):
        RewardModel(folder, max_tokens=65)


def test_a_score_that_is_not_finite_is_an_error_of_its_row(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "nan")
    weights = load_file(tmp_path / "nan" / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = float("nan")
    save_file(weights, tmp_path / "nan" / "model.safetensors", metadata={"format": "pt"})
    found = RewardModel(tmp_path / "nan").score([np.array([1, 6], np.int32), np.array([1, 7], np.int32)])
    assert isinstance(found[0], float)
    assert isinstance(found[1], NonFiniteError)
    assert str(found[1]) == "row 1: the reward model's score is nan"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}, "2 labels|mismatched"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "brings its own Python code"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "weights under missing keys"),
    ],
)
def test_a_folder_that_is_no_reward_model_is_refused(
    values: dict[str, object], says: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        RewardModel(changed(folder, tmp_path / "other", **values))


def test_a_language_model_is_no_reward_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"labels|missing keys"):
        RewardModel(policy_folder(tmp_path))


# ---- beside a rule


def scored(folder: Path, function: str, *items: RewardItem, weight: float = 1.0) -> list[Score]:
    scorer = make_scorer(function, RewardModelConfig(path=str(folder), weight=weight))
    try:
        return scorer.score(items)
    finally:
        scorer.close()


@pytest.fixture
def items(tokenizer: TextTokenizer) -> list[RewardItem]:
    payload = '{"answer":"1"}'
    return [item_of("1=", answer, tokenizer, payload=payload) for answer in ("1", "2", "11")]


def test_the_reward_is_the_rules_and_the_weighted_score_and_both_are_kept(
    folder: Path, items: list[RewardItem]
) -> None:
    alone = scored(folder, "reward_model", *items)
    rows = [np.frombuffer(item.prompt_ids + item.token_ids, "<i4") for item in items]
    scores = RewardModel(folder).score(rows)
    assert [one.reward for one in alone] == scores
    assert [one.components for one in alone] == [{"reward_model": score, "reward": score} for score in scores]
    both = scored(folder, "exact_match", *items, weight=0.25)
    assert [one.reward for one in both] == [hit + 0.25 * score for hit, score in zip((1, 0, 0), scores, strict=True)]
    assert both[0].components == {"rule": 1.0, "reward_model": scores[0], "reward": both[0].reward}
    assert scored(folder, "reward_model", *items, weight=-2.0)[0].reward == -2.0 * scores[0]


def test_the_components_of_a_rule_stay_its_own(folder: Path, items: list[RewardItem]) -> None:
    (one, *_) = scored(folder, "rules_beside:parts", *items)
    score = one.components["reward_model"]
    assert one.components == {"short": 1.0, "odd": 0.5, "reward_model": score, "reward": 1.5 + score}
    (one, *_) = scored(folder, "rules_beside:total", *items)
    assert one.components == {"seen": 9.0, "reward_model": score, "reward": 3.0 + score}


def test_gdpo_learns_from_a_rule_and_a_model_by_their_names(
    folder: Path, items: list[RewardItem], tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    components = 'advantage = "gdpo"\ncomponents = { rule = 1.0, reward_model = 0.2 }\n'
    path.write_text(f'[model]\npreset = "tiny-qwen3"\n[learner.algorithm]\n{components}')
    config = load_args(str(path), ["--reward.model.path", str(folder)])
    names = config.learner.algorithm.component_names
    found = scored(folder, config.reward.function, *items)
    assert component_columns([with_components(one, names) for one in found], names).tolist() == [
        [float(number == 0), one.components["reward_model"]] for number, one in enumerate(found)
    ]
    with pytest.raises(ConfigError, match='"exact_match" is one number'):
        load_args(str(path), [])


def test_a_failure_of_either_is_a_failure_of_the_item(folder: Path, items: list[RewardItem]) -> None:
    found = scored(folder, "rules_beside:bad", *items, RewardItem("3"))
    assert [one.status for one in found] == [ScoreStatus.OK, ScoreStatus.FAILED, ScoreStatus.OK, ScoreStatus.FAILED]
    assert found[1].reason == "returned None"
    assert found[3].reason == "DataError: row 3 has no tokens for the reward model"
    assert all(
        "'reward_model' is the reward model's" in one.reason for one in scored(folder, "rules_beside:taken", *items)
    )


def test_a_reward_model_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs reward\.model\.path"):
        make_scorer("reward_model", RewardModelConfig())


# ---- in the reward stage


def test_rows_of_the_log_reach_the_model_token_for_token(folder: Path, tokenizer: TextTokenizer) -> None:
    prompts, answers = random_rows(7, 5, longest=4), random_rows(8, 5, longest=6)
    rows = ScoringRows(
        rollout_id=[str(number) for number in range(5)],
        branch=np.zeros(5, np.int32),
        stream=["train"] * 5,
        finish_reason=["stop"] * 5,
        payload=["{}"] * 5,
        sampled_ids=np.concatenate(answers),
        sampled_offsets=np.cumsum([0, *map(len, answers)]),
        prompt_ids=np.concatenate(prompts),
        prompt_offsets=np.cumsum([0, *map(len, prompts)]),
    )
    found = [one.reward for one in scored(folder, "reward_model", *reward_items(rows, tokenizer))]
    whole = [np.concatenate(pair) for pair in zip(prompts, answers, strict=True)]
    assert found == RewardModel(folder).score(whole)


async def test_children_load_it_once_compute_with_one_thread_and_score_as_this_process_does(
    folder: Path, rules: Path, items: list[RewardItem], tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "gone")
    model = RewardModelConfig(path=str(tmp_path / "gone"), weight=0.5)
    pool = RewardPool("rules_beside:threads", batch_size=2, timeout_s=60.0, import_paths=[str(rules)], model=model)
    async with pool:
        # Whoever loaded it again for a batch would not find it.
        await asyncio.to_thread(shutil.rmtree, tmp_path / "gone")
        found = [await pool.score(items) for _ in range(2)]
    assert found[0] == found[1]
    assert [one.components["rule"] for one in found[0]] == [1.0] * 3
    here = [one.reward for one in scored(folder, "reward_model", *items)]
    assert [one.components["reward_model"] for one in found[0]] == pytest.approx(here, abs=1e-5)
    assert [one.reward for one in found[0]] == pytest.approx([1.0 + 0.5 * score for score in here], abs=1e-5)


async def test_a_child_that_cannot_load_it_says_why(tmp_path: Path) -> None:
    model = RewardModelConfig(path=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="none does not exist"):
        await RewardPool("exact_match", model=model).start()


def test_a_model_of_another_vocabulary_is_refused_before_a_run(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["sum"])
    tokenizer.save(str(tmp_path / "other" / "tokenizer.json"))
    for place, refused in ((folder, False), (tmp_path / "other", True)):
        reward = {"function": "reward_model", "model": {"path": str(place)}}
        config = msgspec.convert({"model": {"preset": "tiny-qwen3"}, "reward": reward}, Config)
        if not refused:
            check(config)
            continue
        with pytest.raises(ConfigError, match=r"reward\.model\.path: .*other has another vocabulary.*'sum'"):
            check(config)


@pytest.mark.long
def test_a_warm_up_goes_by_the_score_of_the_model_too(folder: Path, tmp_path: Path) -> None:
    seen = []
    for weight in (1.0, -1.0):
        model = {"path": str(folder), "weight": weight}
        keys = {
            "model": {"path": str(policy_folder(tmp_path))},
            "warmup": {"max_steps": 1, "eval_every": 1, "batch_size": 8, "target_score": 1.0},
            "rollout": {"sampling": {"max_new_tokens": 2}},
            "reward": {"function": "reward_model", "timeout_s": 60.0, "model": model},
        }
        run = tmp_path / str(weight)
        run.mkdir()
        seen.append(warm(msgspec.convert(keys, Config), run)[0][2])
    assert seen[0] == pytest.approx(-seen[1])
    assert seen[0] != 0.0


def test_the_reference_loop_scores_the_tokens_that_were_sampled(folder: Path, tmp_path: Path) -> None:
    keys = {
        "model": {"path": str(policy_folder(tmp_path))},
        "rollout": {"group_size": 4, "sampling": {"max_new_tokens": 4}},
        "reward": {"function": "reward_model", "model": {"path": str(folder), "rows_at_once": 1}},
    }
    loop = Reference(msgspec.convert(keys, Config))
    (samples,) = loop.generate(0, 1)
    rows = [np.concatenate([sample.prompt_ids, sample.result.token_ids]) for sample in samples]
    assert [one.reward for one in loop.score(samples)] == RewardModel(folder, rows_at_once=1).score(rows)


# ---- the page


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "guides" / "rewards.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page.partition("## A reward model")[2], re.DOTALL)


@pytest.mark.long
def test_the_example_of_the_page_writes_pairs_and_its_commands_are_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "preferences.py").write_text(blocks("python")[0])
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    _, train, up = blocks("sh")[0].splitlines()
    subprocess.run([sys.executable, "preferences.py"], check=True)
    assert len(read_pairs(tmp_path / "preferences.jsonl")) == 5000
    words = shlex.split(train)[1:]
    words[words.index("--steps") + 1] = "1"
    assert run_app(words) == 0
    assert "held_out_accuracy" in capsys.readouterr().out
    assert run_app(["check", *shlex.split(up)[2:]]) == 0
    Path("run.toml").write_text('[model]\npreset = "tiny-qwen3"\n' + blocks("toml")[0])
    assert load_args("run.toml").reward.model.weight == 0.2
