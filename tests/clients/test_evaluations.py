"""Published evaluations at a real gateway, as they are: their scores are those of the model."""

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.gateway.local_gateway import LocalGateway
from support.gateway.torch_gateway import LONG, torch_gateway
from transformers import AutoModelForCausalLM, AutoTokenizer

from streamrl.errors import ComponentError, ConfigError
from streamrl.gateway.auth import Scope
from streamrl.observability.evaluations import read_evaluations
from streamrl.services.commands.exchange.evaluation import evaluate_tasks
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path

pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason="make test-clients")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[LocalGateway]:
    async with torch_gateway(tmp_path, **LONG) as opened:
        yield opened


def harness(gateway: LocalGateway, folder: Path, kind: str = "local-completions") -> Any:
    """lm-evaluation-harness' model of an API."""
    from lm_eval.api.registry import get_model

    route = "completions" if kind == "local-completions" else "chat/completions"
    return get_model(kind)(
        model="run",
        base_url=f"{gateway.url}/v1/{route}",
        tokenizer=str(folder / "model"),
        tokenizer_backend="huggingface",
        header={"Authorization": f"Bearer {gateway.token()}"},
        max_length=1000,
        num_concurrent=2,
        max_retries=1,
    )


def log_likelihood(folder: Path, context: str, continuation: str) -> tuple[float, bool]:
    """By transformers: of the continuation behind the context, and whether it is the greedy one."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    begin, end = tokenizer.encode(context), tokenizer.encode(continuation)
    ids = torch.tensor([begin + end])
    with torch.inference_mode():
        logprobs = model(ids).logits[0, len(begin) - 1 : -1].log_softmax(-1)
    wanted = torch.tensor(end)
    own = logprobs.gather(1, wanted[:, None]).sum().item()
    return own, bool((logprobs.argmax(-1) == wanted).all())


async def test_the_harness_has_the_models_log_likelihoods(gateway: LocalGateway, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance

    asked = [("1+1=", "2"), ("1+1=", "two, at least"), ("Who is it?:", "é 日本"), ("The same", " again" * 40)]
    model = harness(gateway, tmp_path)
    requests = [Instance("loglikelihood", {}, pair, place) for place, pair in enumerate(asked)]
    told = await asyncio.to_thread(model.loglikelihood, requests)
    expected = [log_likelihood(tmp_path, *pair) for pair in asked]
    assert [greedy for _, greedy in told] == [greedy for _, greedy in expected]
    assert [one for one, _ in told] == pytest.approx([one for one, _ in expected], abs=1e-3)


async def test_the_harness_knows_what_is_greedy(gateway: LocalGateway, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance

    _, answer = await gateway.complete(prompt="1+1=", max_tokens=8, temperature=0)
    text = answer["choices"][0]["text"]
    asked = [Instance("loglikelihood", {}, ("1+1=", text.split("\ufffd", maxsplit=1)[0]), 0)]
    ((_, greedy),) = await asyncio.to_thread(harness(gateway, tmp_path).loglikelihood, asked)
    assert greedy


@pytest.mark.parametrize("kind", ["local-completions", "local-chat-completions"])
async def test_the_harness_scores_what_is_generated(gateway: LocalGateway, tmp_path: Path, kind: str) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(json.dumps(task))
    model = harness(gateway, tmp_path, kind)
    evaluated = await asyncio.to_thread(
        lm_eval.simple_evaluate,
        model=model,
        tasks=["sums"],
        task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        apply_chat_template=kind == "local-chat-completions",
        bootstrap_iters=0,
    )
    assert evaluated["results"]["sums"]["exact_match,none"] == 0.0
    samples = evaluated["samples"]["sums"]
    assert len(samples) == len(rows)
    assert any(sample["resps"][0][0] for sample in samples)


def write_sums(folder: Path) -> None:
    """A task of one's own, of six rows."""
    rows = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(6)]
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "own_sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    (folder / "own_sums.yaml").write_text(json.dumps(task))


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[RunFolder]:
    """A run that is up, with its gateway."""
    async with torch_gateway(tmp_path, owned=True, **LONG) as opened:
        launch = opened.run.record.launch
        assert launch is not None
        opened.run.start_launch(msgspec.structs.replace(launch, gateway=opened.url))
        yield opened.run


async def test_streamrl_eval_scores_a_task_of_ones_own_through_the_gateway(run: RunFolder, tmp_path: Path) -> None:
    write_sums(tmp_path / "tasks")
    told: list[str] = []
    options = {"limit": 4, "include": [str(tmp_path / "tasks")], "chat": False, "tell": told.append}
    facts = await asyncio.to_thread(evaluate_tasks, run, ["own_sums"], **options)
    (record,) = read_evaluations(run.evaluations_path)
    assert (record.name, record.version, record.step, record.limit) == ("own_sums", "0.1", 1, 4)
    assert record.scores == {"exact_match,none": 0.0}
    assert record.source == "lm-eval 0.4.13"
    assert facts["own_sums"]["exact_match,none"] == 0.0
    assert "lm-eval.log" in told[0]
    log = (run.logs_path / "lm-eval.log").read_text()
    assert token_path(run, Scope.GENERATE).read_text() not in log


async def test_streamrl_eval_names_a_task_that_there_is_not(run: RunFolder) -> None:
    options: dict[str, Any] = {"limit": None, "include": [], "chat": False, "tell": lambda _: None}
    with pytest.raises(ConfigError, match=r"lm-eval has no task 'no_such_task'; .*--include FOLDER adds your own"):
        await asyncio.to_thread(evaluate_tasks, run, ["no_such_task"], **options)
    assert not run.evaluations_path.exists()


async def test_streamrl_eval_tells_how_the_harness_failed(run: RunFolder, tmp_path: Path) -> None:
    write_sums(tmp_path / "tasks")
    (tmp_path / "tasks" / "rows.jsonl").unlink()
    options: dict[str, Any] = {"limit": None, "include": [str(tmp_path / "tasks")], "chat": False}
    with pytest.raises(ComponentError, match=r"lm-eval ended with code 1: .*all of it in .*lm-eval.log"):
        await asyncio.to_thread(evaluate_tasks, run, ["own_sums"], tell=lambda _: None, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inspect uses what its libraries deprecate
@pytest.mark.parametrize("responses", [True, False])
async def test_inspect_scores_an_agent_with_a_tool(gateway: LocalGateway, tmp_path: Path, responses: bool) -> None:
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    asked = []

    @tool
    def judge() -> Any:
        async def execute(sure: bool) -> str:
            """Says whether.

            Args:
                sure: whether.
            """
            asked.append(sure)
            return "42"

        return execute

    model = get_model(
        "openai/run",
        base_url=f"{gateway.url}/v1",
        api_key=gateway.token(),
        responses_api=responses,
        config=GenerateConfig(max_tokens=200, max_retries=0, seed=1, parallel_tool_calls=False),
    )
    task = inspect_ai.Task(
        dataset=[Sample(input="1+1=?", target="42") for _ in range(2)],
        solver=[use_tools(judge(), tool_choice="any"), generate(tool_calls="single")],
        scorer=includes(),
    )
    (log,) = await inspect_ai.eval_async(task, model=model, log_dir=str(tmp_path / "logs"))
    assert log.status == "success", log.error
    assert len(asked) == 2
    assert log.results.scores[0].metrics["accuracy"].value is not None
