"""`streamrl doctor`: what a configuration's own parts do, measured before a run is started on them.

`parity`: the engine that samples and the model that is trained answer for the same tokens, under one version. How far
their log-probs are apart is what `learner.algorithm.correction` has to bear in a run, beside staleness.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from streamrl.buffers.rows.arrow import TokenColumns, token_columns
from streamrl.config import Config
from streamrl.engines.build import build_engine
from streamrl.engines.server.process.place import ServerPlace
from streamrl.errors import ComponentError, ConfigError
from streamrl.evaluation import held_out_prompts
from streamrl.ids import rollout_seed
from streamrl.learner.batch.packing import pack
from streamrl.learner.model.policy import PREFIX, PolicyModel
from streamrl.models.dtypes import DTYPES
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer
from streamrl.tasks.load import load_task
from streamrl.tasks.prompts import prompt_ids
from streamrl.types import (
    FinishReason,
    FloatArray,
    GenerationRequest,
    GenerationResult,
    RolloutRows,
    SamplingParams,
    TokenOrigin,
    UpdateMode,
    Version,
)

PUBLISHED = Version(0, 0)


class WorstToken(msgspec.Struct, frozen=True, kw_only=True):
    """The sampled token on which the two are furthest apart. place: sampled tokens before it in its completion."""

    prompt_id: str
    place: int
    token_id: int
    text: str
    engine: float
    learner: float


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """mean, p99, max: of |log-prob of the engine - log-prob of the learner's model| over the sampled tokens."""

    engine: str
    dtype: str
    tokens: int
    mean: float
    p99: float
    max: float
    worst: WorstToken


def parity(config: Config, num_prompts: int) -> Parity:
    """Sample one completion of each of the first held-out prompts and score it on both sides.

    Sampled at the configuration's temperature from the whole distribution, since only that has a log-prob on both
    sides. The engine takes the learner's weights as a version first, as it does in a run.

    Raises ConfigError for an engine without a model and for no prompts, and what `build_engine` raises; ComponentError
    when a prompt has no answer.
    """
    if num_prompts < 1:
        raise ConfigError(f"{num_prompts} prompts are none to compare on: it takes one at least")
    if config.rollout.engine == "scripted":
        raise ConfigError('rollout.engine = "scripted" has no model, so it has no log-probs to compare: name another')
    with tempfile.TemporaryDirectory(prefix="streamrl-doctor-") as scratch:
        folder = prepare_model_folder(config.model, config.seed, Path(scratch) / "model")
        tokenizer = load_tokenizer(folder)
        task, longest = load_task(config, folder)
        prompts = held_out_prompts(task, num_prompts)
        ids_of_prompts = [prompt_ids(prompt, tokenizer) for prompt in prompts]
        policy = PolicyModel(load_model(folder, config.model.dtype).to(torch.float32))  # type: ignore[arg-type]
        asked = [
            GenerationRequest(
                request_id=prompt.prompt_id,
                prompt_ids=ids,
                seed=rollout_seed(config.seed, prompt.prompt_id),
                sampling=_sampling(config),
                stop_token_ids=tokenizer.eos_token_ids,
            )
            for prompt, ids in zip(prompts, ids_of_prompts, strict=True)
        ]
        answers = _answers(config, folder, longest, policy, asked)
    columns = token_columns(ids_of_prompts, answers)
    theirs = columns.rollout_logprobs[columns.token_origin == TokenOrigin.SAMPLED]
    ours = _scored(config, policy, columns)
    worst = int(np.abs(theirs - ours).argmax())
    row, place = _place(answers, worst)
    token_id = answers[row].token_ids[place : place + 1]
    return Parity(
        engine=config.rollout.engine,
        dtype=config.model.dtype,
        tokens=len(ours),
        **_figures(np.abs(theirs.astype(np.float64) - ours)),
        worst=WorstToken(
            prompt_id=answers[row].request_id,
            place=place,
            token_id=int(token_id[0]),
            text=tokenizer.decode_batch(token_id, np.array([0, 1]))[0],
            engine=float(theirs[worst]),
            learner=float(ours[worst]),
        ),
    )


def _sampling(config: Config) -> SamplingParams:
    sampling = config.rollout.sampling
    # Greedy log-probs are those of the plain distribution.
    return SamplingParams(temperature=sampling.temperature or 1.0, max_new_tokens=sampling.max_new_tokens)


def _answers(
    config: Config, folder: Path, longest_prompt: int, policy: PolicyModel, asked: Sequence[GenerationRequest]
) -> list[GenerationResult]:
    """The engine's answers under the policy's weights, in the order in which they were asked for."""
    dtype = DTYPES[config.model.dtype]
    named = {name.removeprefix(PREFIX): param.detach().to(dtype) for name, param in policy.named_parameters()}
    max_length = longest_prompt + config.rollout.sampling.max_new_tokens
    engine = build_engine(config, folder, max_length, ServerPlace(Path.cwd(), "streamrl-doctor"))
    found: dict[str, GenerationResult] = {}
    try:
        engine.load_weights(named, PUBLISHED, UpdateMode.KEEP)
        engine.submit(asked)
        while engine.has_work:
            found.update((result.request_id, result) for result in engine.step())
    finally:
        engine.close()
    for result in found.values():
        if result.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise ComponentError(f"prompt {result.request_id}: {result.finish_reason}: {result.error}")
    return [found[request.request_id] for request in asked]


def _scored(config: Config, policy: PolicyModel, columns: TokenColumns) -> FloatArray:
    """float32 [K], the log-prob of each sampled token by the model that is trained, packed as it is for training."""
    count = columns.num_rows
    sampled = columns.token_origin == TokenOrigin.SAMPLED
    rows = RolloutRows(
        offsets=columns.offsets,
        token_ids=columns.token_ids,
        token_origin=columns.token_origin,
        rollout_logprobs=columns.rollout_logprobs,
        token_steps=np.where(sampled, PUBLISHED.step, -1),
        group=np.arange(count),
        sample_index=np.zeros(count, np.int64),
        rewards=np.zeros(count),
        valid=np.ones(count, np.bool_),
    )
    learner = config.learner
    torch.set_num_threads(learner.threads)
    device = torch.device(learner.device)
    policy = policy.to(device)
    with torch.no_grad():
        parts = [
            policy(batch.to(device), _sampling(config).temperature)[0].cpu().numpy()
            for batch in pack(rows, np.ones(count), learner.micro_batch_tokens)
        ]
    return np.concatenate(parts)


def _place(answers: Sequence[GenerationResult], token: int) -> tuple[int, int]:
    """The answer that has the `token`-th sampled token of all, and the tokens before it there."""
    ends = np.cumsum([len(answer.token_ids) for answer in answers])
    row = int(np.searchsorted(ends, token, side="right"))
    return row, token - int(ends[row]) + len(answers[row].token_ids)


def _figures(apart: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> dict[str, float]:
    return {"mean": float(apart.mean()), "p99": float(np.quantile(apart, 0.99)), "max": float(apart.max())}
