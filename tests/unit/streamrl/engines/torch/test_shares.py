"""The torch engine on a CPU serves from the memory of a published version, as long as it serves that version."""

import os
import random
import threading

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.families import describe
from streamrl.engines.torch.weights import FusedWeights
from streamrl.types import GenerationRequest, SamplingParams, UpdateMode, Version
from streamrl.weights.manifest import WeightManifest
from streamrl.weights.shm.mappings import VersionMappings
from streamrl.weights.shm.shm import ShmPublisher, ShmSource

KEY = b"k" * 32
RUN = "run-1"
VOCAB = 37
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
QK_NORMS = {f"model.layers.{layer}.self_attn.{part}_norm.weight" for layer in range(2) for part in "qk"}
QKV = {
    f"model.layers.{layer}.self_attn.{part}_proj.{kind}"
    for layer in range(2)
    for part in "qkv"
    for kind in ("weight", "bias")
}


def model_of(kind: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    tied = {"tie_word_embeddings": kind != "untied"}
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**SIZES, **tied)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, **tied, head_dim=8)).eval()


def v(step: int) -> Version:
    return Version(0, step)


@pytest.fixture
def publisher(tmp_path):
    with ShmPublisher(RUN, KEY, tmp_path / "weights") as publisher:
        yield publisher


@pytest.fixture
def source():
    return ShmSource(RUN, KEY, mappings=VersionMappings())


def publish(publisher: ShmPublisher, model: PreTrainedModel, step: int) -> WeightManifest:
    return publisher.publish(model.named_parameters(), v(step))


def engine_of(model: PreTrainedModel) -> TorchEngine:
    return TorchEngine(model, v(0), slots=4, max_length=100, kv_bytes=2**24)


def load(engine: TorchEngine, source: ShmSource, manifest: WeightManifest, mode: UpdateMode = UpdateMode.KEEP) -> None:
    with source.open(manifest) as tensors:
        engine.load_weights(tensors, manifest.version, mode)


def requests(new: int = 8) -> list[GenerationRequest]:
    drawn = np.random.default_rng(1)
    prompts = [drawn.integers(0, VOCAB, 5 + i, dtype=np.int32) for i in range(3)]
    return [GenerationRequest(str(i), ids, i, SamplingParams(max_new_tokens=new), ()) for i, ids in enumerate(prompts)]


def bits(engine: TorchEngine) -> list[bytes]:
    return [result.logprobs.tobytes() for result in engine.generate(requests())]


@pytest.mark.parametrize(("kind", "copied"), [("qwen3", QK_NORMS), ("untied", QK_NORMS), ("qwen2", QKV)])
def test_only_what_does_not_lie_together_is_copied(publisher, source, kind, copied):
    """The q and k norms are repeated for each head; biases lie between q, k and v where there are any."""
    model = model_of(kind)
    with source.open(publish(publisher, model, 1)) as tensors:
        weights = FusedWeights.over(describe(model.config), torch.float32, tensors)
        assert set(weights.copied) == copied
        assert weights.embedding.data_ptr() == tensors["model.embed_tokens.weight"].data_ptr()
        ups = [layer.gate_up.t()[64:].data_ptr() for layer in weights.layers]
        assert ups == [tensors[f"model.layers.{layer}.mlp.up_proj.weight"].data_ptr() for layer in range(2)]


@pytest.mark.parametrize("kind", ["qwen3", "untied", "qwen2"])
def test_it_answers_to_the_bit_as_from_memory_of_its_own(publisher, source, kind):
    old, new = model_of(kind), model_of(kind, seed=1)
    engine = engine_of(old)
    load(engine, source, publish(publisher, new, 1))
    assert bits(engine) == bits(engine_of(new)) != bits(engine_of(old))


@pytest.mark.parametrize("mode", list(UpdateMode))
def test_a_version_may_be_prepared_on_another_thread_while_the_engine_steps(publisher, source, mode):
    old, new = model_of("qwen3"), model_of("qwen3", 1)
    engine = engine_of(old)
    engine.submit(requests(30))
    done = []
    with source.open(publish(publisher, new, 1)) as tensors:
        preparing = threading.Thread(target=lambda: done.append(engine.prepare(tensors)))
        preparing.start()
        while preparing.is_alive():
            engine.step()
        preparing.join()
        engine.load_weights(done.pop(), v(1), mode)
    while engine.has_work:
        engine.step()
    assert engine.version == v(1)
    assert bits(engine) == bits(engine_of(new))


def test_what_is_prepared_is_laid_over_the_version_and_a_broken_set_is_refused(publisher, source):
    engine = engine_of(model_of("qwen3"))
    with source.open(publish(publisher, model_of("qwen3", 1), 1)) as tensors:
        prepared = engine.prepare(tensors)
        assert prepared.embedding.data_ptr() == tensors["model.embed_tokens.weight"].data_ptr()
        broken = {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"}
        with pytest.raises(ValueError, match=r"misses tensor model\.norm\.weight"):
            engine.prepare(broken)


def test_tensors_that_do_not_begin_where_a_kernel_loads_are_copied():
    model = model_of("qwen3")
    shape = describe(model.config)
    tensors = {name: tensor.detach() for name, tensor in model.named_parameters()}
    name = "model.norm.weight"
    tensors[name] = torch.cat([torch.zeros(1), tensors[name]])[1:]
    weights = FusedWeights.over(shape, torch.float32, tensors)
    assert name in weights.copied
    assert torch.equal(weights.final_norm, tensors[name])


def test_parts_in_the_wrong_order_or_of_different_memory_are_not_taken_for_one():
    model = model_of("qwen3")
    shape = describe(model.config)
    tensors = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    prefix = "model.layers.0.mlp."
    both = torch.cat([tensors[prefix + "up_proj.weight"], tensors[prefix + "gate_proj.weight"]])
    tensors[prefix + "up_proj.weight"], tensors[prefix + "gate_proj.weight"] = both[:64], both[64:]
    weights = FusedWeights.over(shape, torch.float32, tensors)
    assert torch.equal(weights.layers[0].gate_up.t(), torch.cat([both[64:], both[:64]]))
    assert {prefix + "up_proj.weight", prefix + "gate_proj.weight"} <= set(weights.copied)


@pytest.mark.parametrize("mode", list(UpdateMode))
def test_the_memory_that_serves_is_not_written_over(publisher, source, mode):
    models = [model_of("qwen3", seed) for seed in range(4)]
    expected = [bits(engine_of(model)) for model in models]
    engine = engine_of(models[0])
    manifests = {1: publish(publisher, models[1], 1)}
    load(engine, source, manifests[1], mode)
    for step in (2, 3):  # each could take the memory of the one before
        publisher.unlink(v(step - 1))
        manifests[step] = publish(publisher, models[step], step)
    assert bits(engine) == expected[1]
    load(engine, source, manifests[3], mode)
    assert bits(engine) == expected[3]


def test_a_drained_version_is_kept_until_it_serves(publisher, source):
    models = [model_of("qwen3", seed) for seed in range(4)]
    engine = engine_of(models[0])
    engine.submit(requests(20))
    engine.step()
    load(engine, source, publish(publisher, models[1], 1), UpdateMode.DRAIN)
    for step in (2, 3):
        publisher.unlink(v(step - 1))
        publish(publisher, models[step], step)
    while engine.has_work:
        engine.step()
    assert engine.version == v(1)
    assert bits(engine) == bits(engine_of(models[1]))


def test_an_engine_has_one_version_and_gives_it_back_at_the_next_or_at_its_end(publisher):
    mappings = VersionMappings()
    source = ShmSource(RUN, KEY, mappings=mappings)
    engine = engine_of(model_of("qwen3"))
    inodes = []
    for step in range(1, 7):
        manifest = publish(publisher, model_of("qwen3", step), step)
        load(engine, source, manifest)
        inodes.append(os.stat(manifest.location).st_ino)
        publisher.unlink(v(step - 1))
        assert mappings.idle == min(step - 1, 1)
    assert len(set(inodes)) == 2
    engine.close()
    assert mappings.idle == 2
    publisher.unlink(v(6))
    assert os.stat(publish(publisher, model_of("qwen3"), 7).location).st_ino in inodes


def test_a_set_that_is_refused_leaves_what_serves_and_lets_the_other_go(publisher, source):
    engine = engine_of(model_of("qwen3"))
    before = bits(engine)
    named = list(model_of("qwen3", 1).named_parameters())
    manifest = publisher.publish([*named[:-1], ("other.weight", named[-1][1])], v(1))
    inode = os.stat(manifest.location).st_ino
    with pytest.raises(ValueError, match=r"misses tensor model\.norm\.weight"):
        load(engine, source, manifest)
    publisher.unlink(v(1))
    assert os.stat(publish(publisher, model_of("qwen3", 2), 2).location).st_ino == inode
    assert bits(engine) == before


def test_any_order_of_publishing_loading_and_letting_go_serves_what_it_says(publisher):
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    models = [model_of("qwen3", number) for number in range(3)]
    expected = [bits(engine_of(model)) for model in models]
    engines = {engine_of(models[0]): ShmSource(RUN, KEY, mappings=VersionMappings()) for _ in range(3)}
    serves = dict.fromkeys(engines, 0)
    step, manifest = 0, None
    for _ in range(60):
        if manifest is None or rng.random() < 0.4:
            step += 1
            previous, manifest = manifest, publish(publisher, models[step % 3], step)
            if previous is not None:
                publisher.unlink(previous.version)
        engine = rng.choice(list(engines))
        load(engine, engines[engine], manifest, rng.choice(list(UpdateMode)))
        serves[engine] = step % 3
        other = rng.choice(list(engines))
        assert bits(other) == expected[serves[other]]
