"""The supervised warm-up: it learns, stops where it should, keeps its hands off what is held apart."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.run import WarmupConfig
from streamrl.errors import ConfigError
from streamrl.ids import prompt_digest
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.objectives import nll_loss
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.supervised.warmup import Warmup, WarmupProgress, WarmupResult, batch_items, warmup_optimizer
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer, write_character_tokenizer
from streamrl.tasks.base import Prompt


class NextLetter:
    """`c=` -> `d`: twenty prompts. It remembers which were asked for."""

    name = "next_letter"
    num_train = 20
    num_held_out = 0

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def train(self, index: int) -> Prompt:
        self.asked.add(index)
        return Prompt(prompt_digest(self.name, index), f"{chr(97 + index)}=")

    def held_out(self, index: int) -> Prompt:
        raise IndexError(index)

    def demonstration(self, prompt: Prompt) -> str:
        return chr(ord(prompt.text[0]) + 1)

    def fingerprint(self) -> str:
        return self.name


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_character_tokenizer("abcdefghijklmnopqrstuvwxyz=", 16, folder)
    return load_tokenizer(folder)


def make_policy(group: LearnerGroup) -> ShardedPolicy:
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=30,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    return ShardedPolicy(Qwen3ForCausalLM(config), group, torch.float32)


def run(
    policy: ShardedPolicy,
    tokenizer: TextTokenizer,
    *,
    evaluate: Callable[[], float] = lambda: 0.0,
    task: NextLetter | None = None,
    held_apart: tuple[int, ...] = (3, 11),
    seed: int = 0,
    **config: float,
) -> tuple[WarmupResult, list[WarmupProgress]]:
    seen: list[WarmupProgress] = []
    settings = WarmupConfig(**{"max_steps": 6, "batch_size": 8, "lr": 1e-2, "eval_every": 2, **config})
    warmup = Warmup(
        FsdpBackend(policy, nll_loss, warmup_optimizer(settings), settings.max_steps),
        settings,
        task or NextLetter(),
        tokenizer,
        row_rank=policy.group.ranks.row_rank(policy.group.rank),
        hidden_size=policy.hidden_size,
        evaluate=evaluate,
        held_apart=held_apart,
        seed=seed,
        micro_batch_tokens=16,
    )
    return warmup.run(seen.append), seen


def test_it_learns_the_demonstrations_and_their_end(group: LearnerGroup, tokenizer: TextTokenizer) -> None:
    policy = make_policy(group)
    _, seen = run(policy, tokenizer, max_steps=80)
    assert seen[1].loss > 2.5
    assert seen[-1].loss < 0.3
    answers = [greedy(policy, tokenizer, text) for text in ("a=", "m=")]
    assert answers == ["b", "n"]


def greedy(policy: ShardedPolicy, tokenizer: TextTokenizer, text: str) -> str:
    """Two greedy tokens of a plain copy of the model: the answer, when the second ends it."""
    model = Qwen3ForCausalLM(policy.module.model.config.__class__(**policy.module.model.config.to_dict()))
    model.load_state_dict(dict(policy.iter_hf_weights()), strict=False)
    model.set_attn_implementation("sdpa")
    ids = torch.from_numpy(tokenizer.encode(text)).long()[None]
    for _ in range(2):
        ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)[None]], dim=1)
    assert int(ids[0, -1]) in tokenizer.eos_token_ids
    return tokenizer.decode(ids[0, -2:].numpy().astype(np.int32))


def test_it_stops_at_the_first_look_that_reaches_the_target(group: LearnerGroup, tokenizer: TextTokenizer) -> None:
    scores = iter([0.0, 0.1, 0.6, 0.9])
    result, seen = run(make_policy(group), tokenizer, evaluate=lambda: next(scores), target_score=0.5, max_steps=9)
    assert result == WarmupResult(steps=4, score=0.6, reached=True)
    assert [p.score for p in seen] == [0.0, None, 0.1, None, 0.6]


def test_it_looks_after_the_last_step_and_says_when_the_target_was_missed(
    group: LearnerGroup, tokenizer: TextTokenizer
) -> None:
    scores = iter([0.0, 0.1, 0.2])
    result, _ = run(make_policy(group), tokenizer, evaluate=lambda: next(scores), target_score=0.5, max_steps=3)
    assert result == WarmupResult(steps=3, score=0.2, reached=False)


@pytest.mark.parametrize("config", [{"target_score": 0.5}, {"max_steps": 0, "target_score": 1.0}])
def test_a_model_that_is_good_enough_or_not_to_be_warmed_is_not_changed(
    config: dict[str, float], group: LearnerGroup, tokenizer: TextTokenizer
) -> None:
    policy = make_policy(group)
    before = policy.weight_digest()
    result, _ = run(policy, tokenizer, evaluate=lambda: 0.7, **config)
    assert result.steps == 0
    assert policy.weight_digest() == before


def test_items_held_apart_are_never_trained_on(group: LearnerGroup, tokenizer: TextTokenizer) -> None:
    task = NextLetter()
    run(make_policy(group), tokenizer, task=task, held_apart=(0, 7, 19))
    assert task.asked == set(range(20)) - {0, 7, 19}
    with pytest.raises(ConfigError, match="all 20 training items"):
        run(make_policy(group), tokenizer, held_apart=tuple(range(20)))


def test_the_seed_decides_the_weights(group: LearnerGroup, tokenizer: TextTokenizer) -> None:
    digests = []
    for seed in (0, 0, 1):
        policy = make_policy(group)
        run(policy, tokenizer, seed=seed)
        digests.append(policy.weight_digest())
    assert digests[0] == digests[1] != digests[2]


def test_each_pass_over_the_items_trains_each_of_them_once() -> None:
    batches = batch_items(np.arange(5, 12), 3, seed=4)
    stream = np.concatenate([next(batches) for _ in range(7)])
    passes = stream.reshape(3, 7)
    assert all(sorted(one) == list(range(5, 12)) for one in passes.tolist())
    assert len({tuple(one) for one in passes.tolist()}) == 3
