"""The weights of a version, downloaded from the real gateway by the real client while versions come and go."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import load_file
from support.gateway.local_gateway import LocalGateway, local_gateway, until
from support.weights.adapted_model import IGNORED, logprobs
from support.weights.adapter_versions import ALPHA, RANK, adapter_tensors, base_tensors

import streamrl
from streamrl.client.weights import downloaded
from streamrl.errors import ComponentError, ConfigError, DataError, RequestError
from streamrl.models.adapters.names import adapter_of
from streamrl.services.gateway.weights import HOLDER
from streamrl.types import Version
from streamrl.weights.folder import version_file
from streamrl.weights.manifest import AdapterFacts, WeightManifest, base_version, encode


def tensors(step: int, *, rows: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model.layers.0.weight": torch.randn(rows, 1024, generator=generator),
        "model.norm.weight": torch.randn(7, generator=generator).to(torch.bfloat16),
    }


async def publish(gateway: LocalGateway, step: int, pin_for: str | None = None, *, rows: int = 3) -> WeightManifest:
    """As a learner does: what nobody needs any more is taken back."""
    manifest = gateway.publisher.publish(tensors(step, rows=rows).items(), Version(0, step))
    gone, _ = await gateway.store.publish.remote(encode(manifest), pin_for)
    for version in gone:
        gateway.publisher.unlink(version)
    return manifest


def connected(gateway: LocalGateway) -> Any:
    return streamrl.connect(gateway.url, token=gateway.token())


def assert_equal(path: Path, wanted: dict[str, torch.Tensor]) -> None:
    loaded = load_file(path)
    assert loaded.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name


async def test_the_newest_version_is_downloaded_or_one_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"older")
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        older = await publish(gateway, 2, "evaluation")
        newest = await publish(gateway, 3, rows=4096)  # of several pieces
        got = await client.weights(path)
        assert (got.version, got.digest, got.path) == (Version(0, 3), newest.digest, path)
        assert got.num_bytes == path.stat().st_size
        assert_equal(path, tensors(3, rows=4096))
        for name in ("0.2", Version(0, 2)):
            assert (await client.weights(path, name)).digest == older.digest
            assert_equal(path, tensors(2))
    assert named_so(tmp_path) == [path], "nothing is left of what was on its way"


async def test_what_cannot_be_had_is_a_typed_error_and_the_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"older")
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        for name, code in (("0.9", "unknown_version"), ("x", "invalid_value"), ("0.1.2", "invalid_value")):
            with pytest.raises(RequestError, match=code):
                await client.weights(path, name)
        for place in (tmp_path / "nowhere" / "x", tmp_path):
            with pytest.raises(ConfigError, match="cannot write"):
                await client.weights(place)
        gateway.store.die()
        with pytest.raises(ComponentError, match="run_not_ready"):
            await client.weights(path)
    async with local_gateway(tmp_path / "other", ready=False) as gateway, connected(gateway) as client:
        with pytest.raises(ComponentError, match="no version is published yet"):
            await client.weights(path)
    assert path.read_bytes() == b"older"


async def test_bytes_that_are_damaged_in_memory_do_not_reach_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        manifest = await publish(gateway, 2)
        flip_a_bit(Path(manifest.location), manifest.tensors[0].offset)
        with pytest.raises(ComponentError, match="did not come whole"):
            await client.weights(path)
        assert not path.exists()
        await publish(gateway, 3)
        assert (await client.weights(path)).version == Version(0, 3), "the next one reads again"


def named_so(folder: Path) -> list[Path]:
    return sorted(folder.glob("*policy*"))


def flip_a_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("less", [1, 10**4, 10**9])
async def test_what_is_not_whole_or_not_the_version_gets_no_name(less: int, tmp_path: Path) -> None:
    async def pieces(data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    path = tmp_path / "policy.safetensors"
    async with local_gateway(tmp_path) as gateway:
        await publish(gateway, 2)
        _, data = await gateway.ask("/api/weights")
    with pytest.raises(DataError, match="ends before"):
        await downloaded(pieces(data[: max(0, len(data) - less)]), path)
    with pytest.raises(DataError, match="damaged on their way"):
        await downloaded(pieces(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]), path)
    assert named_so(tmp_path) == []
    assert (await downloaded(pieces(data), path)).version == Version(0, 2)


FULL = """
import resource, sys
from pathlib import Path
from streamrl.client.weights import WeightsFile
from streamrl.errors import ResourceError

data = Path(sys.argv[1]).read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(data) // 2, resource.RLIM_INFINITY))
file = WeightsFile(Path(sys.argv[2]))
try:
    file.add(data)
except ResourceError as error:
    print(error)
finally:
    file.close()
"""


async def test_a_disk_that_is_full_is_a_lack_of_resources_and_leaves_nothing(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "policy.safetensors"
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        await publish(gateway, 2)
        await client.weights(whole)
    command = (sys.executable, "-c", FULL, str(whole), str(path))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert f"cannot write {path}: File too large; free some space" in out.decode()
    assert named_so(tmp_path) == []


async def reading(gateway: LocalGateway) -> aiohttp.ClientResponse:
    """A download that its client does not go on with. Of more bytes than lie in buffers on the way."""
    headers = {"authorization": f"Bearer {gateway.token()}"}
    return await gateway.http.get(f"{gateway.url}/api/weights", headers=headers, read_bufsize=2**10)


async def test_a_version_stays_as_it_is_while_it_is_read_and_nobody_waits_for_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        manifest = await publish(gateway, 2, rows=16384)
        response = await reading(gateway)
        for step in (3, 4, 5):  # their memory is used again where it may be
            await publish(gateway, step, rows=16384)
        assert not version_file(Path(manifest.location).parent, Version(0, 2)).exists()
        status, answer = await gateway.ask("/api/weights")
        assert (status, answer["error"]["code"]) == (429, "too_many_requests")
        with pytest.raises(ComponentError, match="too_many_requests"):
            await client.weights(path)
        path.write_bytes(await response.read())
        assert_equal(path, tensors(2, rows=16384))
        assert (await client.weights(path)).version == Version(0, 5)


async def test_who_goes_away_in_the_middle_makes_room_for_the_next(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        await publish(gateway, 2, rows=16384)
        response = await reading(gateway)
        assert gateway.actor._weights._reading
        response.close()
        await until(lambda: not gateway.actor._weights._reading)
        assert (await client.weights(tmp_path / "x")).version == Version(0, 2)


async def test_nothing_stays_pinned_neither_by_downloads_nor_by_a_gateway_that_died(tmp_path: Path) -> None:
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        await publish(gateway, 2)
        await client.weights(tmp_path / "x")
        await publish(gateway, 3)
        assert await gateway.store.kept.remote() == [Version(0, 3)]
        await gateway.store.pin.remote(Version(0, 3), HOLDER)
        await publish(gateway, 4)
        assert Version(0, 3) in await gateway.store.kept.remote()
        gateway.actor._weights.begin()
        assert await gateway.store.retired.remote() == [Version(0, 3)]


async def test_adapters_are_downloaded_as_peft_has_them(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        base = gateway.publisher.publish(base_tensors().items(), base_version(Version(0, 2)))
        facts = AdapterFacts(base=base, rank=RANK, alpha=ALPHA)
        manifest = gateway.publisher.publish(adapter_tensors(2).items(), Version(0, 2), facts)
        await gateway.store.publish.remote(encode(manifest))
        got = await client.weights(path)
    assert (got.version, got.digest) == (Version(0, 2), manifest.digest)
    assert got.adapters == {
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["o_proj", "q_proj"],
    }
    assert_equal(path, {f"base_model.model.{name}": tensor for name, tensor in adapter_tensors(2).items()})


@pytest.mark.filterwarnings(IGNORED)
async def test_peft_computes_with_what_was_downloaded(tmp_path: Path) -> None:
    peft, auto = pytest.importorskip("peft"), pytest.importorskip("transformers").AutoModelForCausalLM
    async with local_gateway(tmp_path) as gateway, connected(gateway) as client:
        plain = auto.from_pretrained(tmp_path / "model")
        weights = {name: param.detach() for name, param in plain.named_parameters()}
        adapters = drawn_adapters(weights)
        base = gateway.publisher.publish(weights.items(), base_version(Version(0, 2)))
        facts = AdapterFacts(base=base, rank=RANK, alpha=ALPHA)
        manifest = gateway.publisher.publish(adapters.items(), Version(0, 2), facts)
        await gateway.store.publish.remote(encode(manifest))
        got = await client.weights(tmp_path / "adapter_model.safetensors")
    peft.LoraConfig(**got.adapters).save_pretrained(tmp_path)
    ids = torch.arange(3, 19).view(1, 16)
    merged = auto.from_pretrained(tmp_path / "model")
    for name, param in merged.named_parameters():
        lora_a, lora_b = (adapters.get(one) for one in adapter_of(name))
        if lora_a is not None and lora_b is not None:
            param.data += ALPHA / RANK * lora_b @ lora_a
    wanted, without = logprobs(merged, ids), logprobs(plain, ids)
    found = logprobs(peft.PeftModel.from_pretrained(plain, tmp_path), ids)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5)
    assert not torch.allclose(found, without, rtol=0, atol=1e-2)


def drawn_adapters(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """For the query and value projections of every layer."""
    generator, drawn = torch.Generator().manual_seed(7), {}
    for name, weight in weights.items():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            lora_a, lora_b = adapter_of(name)
            drawn[lora_a] = torch.randn((RANK, weight.shape[1]), generator=generator)
            drawn[lora_b] = torch.randn((weight.shape[0], RANK), generator=generator)
    return drawn


async def test_a_script_downloads_too(tmp_path: Path) -> None:
    def script(url: str, token: str) -> Version:
        with streamrl.connect(url, token=token) as client:
            return client.weights(tmp_path / "x").version

    async with local_gateway(tmp_path) as gateway:
        assert await asyncio.to_thread(script, gateway.url, gateway.token()) == Version(0, 1)
