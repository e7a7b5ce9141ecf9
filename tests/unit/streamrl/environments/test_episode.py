"""An episode without engine and environment: ids over turns, forks, limits."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from support.environments.spoken import REWRITING, RUN_SEED, TEMPLATE, TOOLS, Model, chat_of, rollout_of

from streamrl.buffers.rows.trajectory_rows import branch_columns
from streamrl.clock import VirtualClock
from streamrl.environments.chat import Chat
from streamrl.environments.episode import Episode, EpisodeLimits, Limit
from streamrl.environments.outcomes import EnvironmentFault
from streamrl.ids import completion_seed, turn_seed
from streamrl.models.chat_template import load_chat_template
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.types import FinishReason, GenerationResult, TokenOrigin, Version, VersionSpan

LIMITS = EpisodeLimits(max_turns=5, max_tokens=500, context=300, timeout_s=60.0)
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class Played:
    """An episode whose environment answers `hi`, to its end."""

    def __init__(
        self, folder: Path, *texts: str, template: str = TEMPLATE, steps=(), tools=(), most: int = 50, **limits
    ):
        self.chat, self.tokenizer = chat_of(folder, template)
        self.model = Model(self.tokenizer, texts, steps)
        self.clock = VirtualClock()
        given = EpisodeLimits(**{name: getattr(LIMITS, name) for name in LIMITS.__slots__} | limits)
        rollout = rollout_of(self.tokenizer, most=most)
        self.episode = Episode(rollout, given, self.chat, self.clock, "game")
        self.messages = []
        request = self.episode.opened(HI, tools)
        while request is not None and len(self.model.asked) < len(texts):
            said = self.episode.sampled(self.model.answer(request))
            self.messages.append(said.message)
            self.clock.advance(10.0)
            request = self.episode.went_on(HI) if self.episode.limit is None else None

    def rows(self) -> list[str]:
        """Of each branch its text, what was sampled in brackets."""
        columns = branch_columns(self.episode.branches())
        found = []
        for start, end in zip(columns.offsets[:-1], columns.offsets[1:], strict=True):
            origin, ids = columns.token_origin[start:end], columns.token_ids[start:end]
            cuts = [0, *(np.flatnonzero(np.diff(origin)) + 1), len(ids)]
            text = ""
            for a, b in itertools.pairwise(cuts):
                piece = self.tokenizer.decode(ids[a:b], special_tokens=True)
                text += f"[{piece}]" if origin[a] == TokenOrigin.SAMPLED else piece
            found.append(text)
        return found


def test_ids_that_were_sampled_are_the_ids_of_the_row_over_all_turns(tmp_path: Path) -> None:
    played = Played(tmp_path, "ab", "c", "d")
    assert played.rows() == [
        "<|user|>hi<|assistant|>[ab<eos>]<|user|>hi<|assistant|>[c<eos>]<|user|>hi<|assistant|>[d<eos>]"
    ]
    assert played.episode.final == "d"
    assert played.episode.turns == 3
    for before, request in zip(played.model.asked[:-1], played.model.asked[1:], strict=True):
        assert request.prompt_ids[: len(before.prompt_ids)].tolist() == before.prompt_ids.tolist()


def test_a_template_that_rewrites_what_was_said_forks(tmp_path: Path) -> None:
    played = Played(tmp_path, "ab", "c", template=REWRITING)
    assert played.rows() == ["<|user|>hi<|assistant|>[ab<eos>]", "<|user|>hi<|assistant|>[c<eos>]"]


WITHOUT_THOUGHTS = TEMPLATE.replace("{{ m.content }}", "{{ m.content.split('=')[-1] if not loop.last else m.content }}")


def chat_of_pairs(folder: Path, template: str) -> tuple[Chat, TextTokenizer]:
    """With a token `11`, so that `1` and `1` are ids that no text is encoded to."""
    chat_of(folder, template)
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    number = 1 + max(*told["model"]["vocab"].values(), *(one["id"] for one in told["added_tokens"]))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    told["added_tokens"].append({"id": number, "content": "11", **flags})
    path.write_text(json.dumps(told))
    tokenizer, found = load_tokenizer(folder), load_chat_template(folder)
    assert found is not None
    return Chat(tokenizer, found), tokenizer


@pytest.mark.parametrize("template", [TEMPLATE, REWRITING, WITHOUT_THOUGHTS], ids=["plain", "forgets", "cuts"])
def test_each_id_that_was_sampled_is_trained_once_whatever_a_template_makes_of_it(tmp_path: Path, template) -> None:
    """Any ids, also such as no text is encoded to; each is known by its log-prob."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    random = np.random.default_rng(seed)
    chat, tokenizer = chat_of_pairs(tmp_path, template)
    known = np.array([tokenizer.vocabulary()[text] for text in ("1", "11", "=", "+")], np.int32)
    assert len(tokenizer.encode("11", add_special_tokens=False)) == 1
    for _ in range(30):
        episode = Episode(rollout_of(tokenizer), LIMITS, chat, VirtualClock(), "game")
        request, number, sampled = episode.opened(HI, ()), 0, []
        while request is not None:
            count = int(random.integers(1, 12))
            ids = np.append(random.choice(known, count), tokenizer.eos_token_ids[0]).astype(np.int32)
            logprobs = -(number + np.arange(1, len(ids) + 1, dtype=np.float32))
            number += len(ids)
            sampled += zip(ids.tolist(), logprobs.tolist(), strict=True)
            spans = (VersionSpan(0, Version(0, 0)),)
            episode.sampled(GenerationResult(request.request_id, ids, logprobs, spans, FinishReason.STOP))
            request = episode.went_on(HI)
        columns = branch_columns(episode.branches())
        own = columns.token_origin == TokenOrigin.SAMPLED
        trained = zip(columns.token_ids[own].tolist(), columns.rollout_logprobs[own].tolist(), strict=True)
        assert sorted(trained) == sorted(sampled)


def test_each_turn_has_the_seed_that_a_client_of_the_gateway_would_give(tmp_path: Path) -> None:
    played = Played(tmp_path, "a", "b")
    seeds = [completion_seed(turn_seed(RUN_SEED, "p.0/3", turn), 0) for turn in range(2)]
    assert [request.seed for request in played.model.asked] == seeds


def test_the_rows_own_prompt_where_the_environment_says_nothing(tmp_path: Path) -> None:
    chat, tokenizer = chat_of(tmp_path)
    rollout = rollout_of(tokenizer)
    request = Episode(rollout, LIMITS, chat, VirtualClock(), "game").opened(None, ())
    assert request is not None
    assert request.prompt_ids.tolist() == rollout.request.prompt_ids.tolist()


def test_tool_calls_reach_the_environment_parsed_and_the_next_prompt_as_sampled(tmp_path: Path) -> None:
    spaced = f"so {CALL.replace('{', '{ ')} "
    played = Played(tmp_path, spaced, "x", template=TOOLS, tools=[TOOL], most=100)
    first, second = played.messages
    assert first["content"] == "so"
    (call,) = first["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": {"a": 1}}
    assert call["id"] == "call_p.0/3/0_0_0"
    assert "tool_calls" not in second
    (row,) = played.rows()
    assert f"[{spaced}<eos>]" in row
    assert played.episode.tool_calls == 1


@pytest.mark.parametrize(
    ("texts", "limits", "limit", "turns"),
    [
        (["a", "b", "c"], {"max_turns": 2}, Limit.TURNS, 2),
        (["a", "b", "c"], {"timeout_s": 20.0}, Limit.TIME, 2),
        (["a", "b", "c"], {"max_tokens": 14}, Limit.TOKENS, 2),
        (["a", "b", "c"], {"context": 14}, Limit.TOKENS, 2),
        (["a" * 49], {"max_turns": 1}, Limit.TURNS, 1),
        (["a" * 50], {}, Limit.TURN_TOKENS, 1),
        (["abcdefghij"], {"max_tokens": 10}, Limit.TURN_TOKENS, 1),
        ([CALL * 2], {"max_tool_calls": 1}, Limit.TOOL_CALLS, 1),
        (["a"], {"context": 4}, Limit.TOKENS, 0),
    ],
)
def test_limits_end_it_and_no_row_is_longer_than_they_say(tmp_path: Path, texts, limits, limit, turns) -> None:
    tools = {"template": TOOLS, "tools": [TOOL], "most": 200} if "max_tool_calls" in limits else {}
    played = Played(tmp_path, *texts, **limits, **tools)
    assert played.episode.limit is limit
    assert played.episode.turns == turns
    for branch in played.episode.branches():
        assert branch.num_tokens <= min(limits.get("max_tokens", 500), limits.get("context", 300))


def test_all_branches_together_are_within_the_tokens_of_an_episode(tmp_path: Path) -> None:
    played = Played(tmp_path, *"abcdefgh", template=REWRITING, max_turns=9, max_tokens=40, timeout_s=600.0)
    assert played.episode.limit is Limit.TOKENS
    assert len(played.rows()) > 3
    assert sum(branch.num_tokens for branch in played.episode.branches()) <= 40


def test_staleness_counts_the_oldest_token_of_all_turns(tmp_path: Path) -> None:
    played = Played(tmp_path, "a", "b", "c", steps=[3, 4, 6])
    columns = branch_columns(played.episode.branches())
    assert columns.oldest_steps().tolist() == [3]
    assert columns.span_step.tolist() == [3, 4, 6]


def test_messages_that_the_template_does_not_take_are_the_environments_fault(tmp_path: Path) -> None:
    chat, tokenizer = chat_of(tmp_path, "{{ raise_exception('no ' + messages[0].role) }}")
    with pytest.raises(EnvironmentFault, match=r"game, turn 0: .*no user"):
        Episode(rollout_of(tokenizer), LIMITS, chat, VirtualClock(), "game").opened(HI, ())


def test_tools_that_the_template_does_not_know_are_told(tmp_path: Path) -> None:
    chat, tokenizer = chat_of(tmp_path)
    with pytest.raises(EnvironmentFault, match="chat template does not know any"):
        Episode(rollout_of(tokenizer), LIMITS, chat, VirtualClock(), "game").opened(HI, [TOOL])


def test_text_that_the_vocabulary_does_not_have_is_the_environments_fault(tmp_path: Path) -> None:
    chat, tokenizer = chat_of(tmp_path)
    with pytest.raises(EnvironmentFault, match="cannot encode"):
        Episode(rollout_of(tokenizer), LIMITS, chat, VirtualClock(), "game").opened(
            [{**HI[0], "content": "\u20ac"}], ()
        )


def test_a_text_far_beyond_the_context_ends_it_and_is_never_encoded(tmp_path: Path) -> None:
    """Where it was encoded, the sign that no token has would be told."""
    chat, tokenizer = chat_of(tmp_path)
    episode = Episode(rollout_of(tokenizer), LIMITS, chat, VirtualClock(), "game")
    assert episode.opened([{**HI[0], "content": "a" * 10**6 + "\u20ac"}], ()) is None
    assert episode.limit is Limit.TOKENS


def test_the_messages_are_json(tmp_path: Path) -> None:
    played = Played(tmp_path, CALL, template=TOOLS, tools=[TOOL], most=200)
    assert json.loads(json.dumps(played.messages)) == played.messages
