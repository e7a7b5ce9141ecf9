"""A run that trains adapters, without Ray: what its learner publishes, what a replica serves, what is exported."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from support.learner.probe_learner import STEPS, built, change, learn
from support.runs.probe_parts import with_replica
from transformers import AutoModelForCausalLM

from streamrl.config import dump
from streamrl.config.schema.learner import LearnerConfig, LoraConfig, OptimizerConfig
from streamrl.config.schema.run import Config, ModelConfig, QueueConfig
from streamrl.engines.build import build_engine
from streamrl.errors import ConfigError, DataError
from streamrl.learner.batch.packing import pack
from streamrl.learner.checkpoint.checkpoint import find_newest
from streamrl.models.adapters.merge import merged
from streamrl.models.adapters.names import adapter_of
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.reference import Reference
from streamrl.services.cli.main import run_app
from streamrl.services.commands.exchange.hub import export
from streamrl.services.learner.core import LearnerCore
from streamrl.services.rollout.actor import RolloutReplica
from streamrl.services.run.folder import RunFolder
from streamrl.types import GenerationRequest, RolloutRows, SamplingParams, UpdateMode, Version
from streamrl.weights.folder import shm_folder
from streamrl.weights.manifest import AdapterFacts, WeightManifest, sign
from streamrl.weights.served import ServedVersions
from streamrl.weights.shm.shm import ShmPublisher

CONFIG = Config(
    model=ModelConfig(preset="tiny-qwen3"),
    learner=LearnerConfig(
        steps=STEPS, optimizer=OptimizerConfig(lr=1e-2, warmup_steps=1), lora=LoraConfig(rank=4, alpha=6.0)
    ),
    queue=QueueConfig(segment_bytes=2**20),
)
QUERY = "model.layers.1.self_attn.q_proj.weight"


def train(core: LearnerCore, steps: int = 1) -> None:
    for _ in range(steps):
        change(core)


def published(core: LearnerCore) -> WeightManifest:
    written = core.publish(core.snapshot_weights())
    assert written is not None
    return written.manifest


def in_shared_memory(core: LearnerCore) -> list[str]:
    return sorted(path.stem for path in shm_folder(core._run.run_id).glob("*.weights"))


def test_each_step_publishes_adapters_only_and_each_incarnation_its_base_once(tmp_path: Path) -> None:
    with built(CONFIG, tmp_path) as core:
        manifests = []
        for _ in range(2):
            manifests.append(published(core))
            train(core)
        policy = core._policy
        version, base = 4 * policy.num_parameters, 4 * policy.num_base_parameters
        assert [(one.total_bytes, one.base.total_bytes) for one in manifests] == [(version, base)] * 2
        assert version < base / 5
        assert in_shared_memory(core) == ["0.-1", "0.0", "0.1"]
        core.incarnation = 3
        again = published(core)
        assert again.base.version == Version(3, -1)
        assert again.base.digest == policy.base_digest
        assert in_shared_memory(core) == ["0.-1", "0.0", "0.1", "3.-1", "3.2"]


def test_shared_memory_has_room_for_a_successor_beside_what_the_learner_before_it_left(tmp_path: Path) -> None:
    with built(CONFIG, tmp_path) as core:
        for incarnation in (0, 1):
            core.incarnation = incarnation
            assert core.lack_of_memory() == ""
            published(core)
        # Of a third base there has to be one less.
        core.incarnation = 2
        assert "weights.byte_budget" in core.lack_of_memory()
        core.unlink([Version(0, -1), Version(0, 0)])
        assert core.lack_of_memory() == ""
        core.keep_only([Version(1, -1), Version(1, 0)])
        assert in_shared_memory(core) == ["1.-1", "1.0"]


def test_a_resumed_learner_holds_the_adapters_and_their_moments_and_publishes_the_same(tmp_path: Path) -> None:
    with built(CONFIG, tmp_path) as core:
        train(core, 2)
        before = published(core)
        core.save()
        train(core, 1)
        after = published(core)
        num_parameters = core._policy.num_parameters
    with built(CONFIG, tmp_path) as core:
        core.incarnation = 1
        assert core.state_bytes() == 3 * 4 * num_parameters
        assert published(core).digest == before.digest
        train(core, 1)
        assert published(core).digest == after.digest
    assert before.digest != after.digest


def test_a_checkpoint_is_refused_when_the_model_was_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder)
    config = msgspec.structs.replace(CONFIG, model=ModelConfig(path=str(folder)))
    with built(config, tmp_path / "run") as core:
        core.save()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 1, folder)
    with pytest.raises(DataError, match="was the model replaced"), built(config, tmp_path / "run"):
        pass


# ---- what is served


def learner_rows(prompt: np.ndarray, ids: list[np.ndarray]) -> RolloutRows:
    lengths = np.array([len(part) for one in ids for part in (prompt, one)])
    count = len(ids)
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)[1::2]]),
        token_ids=np.concatenate([part for one in ids for part in (prompt, one)]).astype(np.int32),
        token_origin=np.repeat(np.tile([0, 1], count), lengths).astype(np.uint8),
        rollout_logprobs=np.zeros(lengths.sum(), np.float32),
        token_steps=np.zeros(lengths.sum(), np.int64),
        group=np.arange(count),
        sample_index=np.zeros(count, np.int64),
        rewards=np.zeros(count),
        valid=np.ones(count, bool),
    )


def test_an_engine_answers_with_the_log_probs_of_the_model_that_is_trained(tmp_path: Path) -> None:
    with built(CONFIG, tmp_path) as core:
        train(core, STEPS)
        manifest = published(core)
        engine = build_engine(CONFIG, tmp_path / "model", 32)
        with ServedVersions(core._run.run_id, core._run.key()).open(manifest) as tensors:
            engine.load_weights(tensors, manifest.version, UpdateMode.KEEP)
        prompt, sampling = np.array([1, 4, 5], np.int32), SamplingParams(max_new_tokens=12)
        requests = [GenerationRequest(f"{seed}", prompt, seed, sampling, (2,)) for seed in range(8)]
        answers = engine.generate(requests)
        engine.close()
        rows = learner_rows(prompt, [answer.token_ids for answer in answers])
        packs = pack(rows, np.ones(rows.num_rows), 4096)
        mine = torch.cat(core._backend.logprobs(packs)).numpy()
        theirs = np.concatenate([answer.logprobs for answer in answers])
        assert np.abs(mine - theirs).max() <= 1e-5
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        untrained = dict(base.named_parameters())
        assert any(not torch.equal(tensor, untrained[name]) for name, tensor in core._backend.iter_hf_weights())


def adapters_of(base: WeightManifest, value: float) -> dict[str, torch.Tensor]:
    """For the query projections of a base, each of rank 4."""
    shapes = {entry.name: entry.shape for entry in base.tensors if "q_proj" in entry.name}
    pairs = [(*adapter_of(name), *shape) for name, shape in shapes.items()]
    first = {lora_a: torch.full((4, into), value) for lora_a, _, _, into in pairs}
    return first | {lora_b: torch.full((out, 4), value) for _, lora_b, out, _ in pairs}


@pytest.mark.parametrize("kind", ["missing", "cut", "foreign"])
def test_a_version_without_its_right_base_is_refused_and_the_old_one_serves_on(tmp_path: Path, kind: str) -> None:
    folder = prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    config = msgspec.structs.replace(CONFIG, model=ModelConfig(path=str(folder)))
    weights = list(load_model(folder, "float32").named_parameters())

    async def refuse(replica: RolloutReplica, run: RunFolder) -> list[Version]:
        with ShmPublisher(run.run_id, run.key()) as publisher:
            bases = [publisher.publish(weights, Version(incarnation, -1)) for incarnation in (0, 1)]
            facts = [AdapterFacts(base=base, rank=4, alpha=6.0) for base in bases]
            first, wanted = (
                publisher.publish(adapters_of(bases[0], 0.1).items(), Version(incarnation, 0), facts[incarnation])
                for incarnation in (0, 1)
            )
            await replica._take_up(first)
            if kind == "missing":
                publisher.unlink(Version(1, -1))
            elif kind == "cut":
                os.truncate(bases[1].location, bases[1].total_bytes - 1)
            else:
                wanted = sign(msgspec.structs.replace(wanted, adapters=facts[0]), run.key())
            with pytest.raises(DataError, match=r"version 1\.-1|not that of its incarnation"):
                await replica._take_up(wanted)
            engine = await asyncio.wrap_future(replica._thread.call(lambda engine: engine))
            served = merged(dict(weights)[QUERY], *(adapters_of(bases[0], 0.1)[one] for one in adapter_of(QUERY)), 1.5)
            assert torch.equal(engine._serving.current._views[QUERY], served)
            return engine.version

    assert asyncio.run(with_replica(config, tmp_path / "run", refuse)) == Version(0, 0)


# ---- what is exported


@contextmanager
def finished(config: Config, folder: Path) -> Iterator[RunFolder]:
    """A run of three steps, its configuration in its folder."""
    learn(config, folder)
    run = RunFolder.open(folder)
    run.config_path.write_text(dump(config))
    yield run


def logprobs(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(3, 19).view(2, 8)
    with torch.no_grad():
        return model(ids).logits.log_softmax(-1)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_exports_whole_and_by_peft_compute_what_was_served(tmp_path: Path) -> None:
    with finished(CONFIG, tmp_path / "run") as run:
        with built(CONFIG, tmp_path / "run") as core:
            manifest = published(core)
            with ServedVersions(core._run.run_id, core._run.key()).open(manifest) as tensors:
                served = AutoModelForCausalLM.from_pretrained(run.path / "model")
                served.load_state_dict(dict(tensors), strict=False)
        whole = export(run, tmp_path / "whole")
        alone = export(run, tmp_path / "alone", "peft")
        assert whole["step"] == alone["step"] == STEPS
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
        assert all(torch.equal(exported.get_parameter(name), param) for name, param in served.named_parameters())
        base = AutoModelForCausalLM.from_pretrained(run.path / "model")
        untrained = logprobs(base)
        adapted = PeftModel.from_pretrained(base, tmp_path / "alone")
        assert (logprobs(adapted) - logprobs(served)).abs().max() <= 1e-5
        assert (untrained - logprobs(served)).abs().max() > 1e-3
        with safe_open(tmp_path / "alone" / "adapter_model.safetensors", framework="pt") as file:
            names = set(file.keys())
        assert names == {f"base_model.model.{entry.name}" for entry in manifest.tensors}


def test_the_command_exports_to_the_run_folder_by_default_and_knows_two_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with finished(CONFIG, tmp_path / "run") as run:
        assert run_app(["export", str(run.path), "--format", "peft", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["step"], told["folder"]) == (STEPS, str(run.path / "adapters"))
        settings = json.loads((run.path / "adapters" / "adapter_config.json").read_text())
        assert (settings["r"], settings["lora_alpha"]) == (4, 6)
        assert settings["base_model_name_or_path"] == str(run.path / "model")
        assert run_app(["export", str(run.path), "--format", "gguf"]) == 2
        assert "hf" in capsys.readouterr().err


def test_a_check_says_that_adapters_are_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text('[model]\npreset = "tiny-qwen3"\n')
    arguments = ["check", str(tmp_path / "run.toml"), "--runs", str(tmp_path / "runs")]
    for rank, said in ((0, "100 steps"), (4, "100 steps, adapters of rank 4")):
        assert run_app([*arguments, "--learner.lora.rank", str(rank)]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith(said)


def test_an_export_of_adapters_is_refused_where_there_are_none_or_the_model_is_another(tmp_path: Path) -> None:
    full = msgspec.structs.replace(CONFIG, learner=LearnerConfig(steps=STEPS))
    with finished(full, tmp_path / "full") as run, pytest.raises(ConfigError, match=r"learner.lora.rank = 0"):
        export(run, tmp_path / "alone", "peft")
    with finished(CONFIG, tmp_path / "run") as run:
        info = find_newest(run.checkpoints_path).newest
        assert info is not None
        assert info.extra["backend"]["adapters"]["rank"] == 4
        path = run.path / "model" / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(DataError, match="put the model back that the run was started on"):
            export(run, tmp_path / "whole")
        assert not (tmp_path / "whole").exists()


def test_the_reference_loop_refuses_adapters(tmp_path: Path) -> None:
    folder = prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    with pytest.raises(ConfigError, match=r"learner.lora.rank"):
        Reference(msgspec.structs.replace(CONFIG, model=ModelConfig(path=str(folder))))
