"""Real servers give the log-probs of transformers for models of many families, before and after an update.

The models are tiny; their heads are as wide as the servers' kernels for a CPU take them. What is not here is in
docs/guides/engines.md with the reason.
"""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.engines.family_models import family_model
from support.engines.real_engines import Kind, requests_of, served

from streamrl.models.tokenizer import write_character_tokenizer
from streamrl.types import UpdateMode, Version

CONTEXT = 256
WIDE = {
    "hidden_size": 128,
    "head_dim": 32,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "max_position_embeddings": 512,
    "dtype": "float32",
}
MORE = {"gemma2": {"query_pre_attn_scalar": 32}, "gemma3_text": {"query_pre_attn_scalar": 32}}
"""By family, beside WIDE."""
VLLM = (
    "mistral", "ministral", "gemma", "gemma2", "phi3", "olmo2", "olmo3", "smollm3", "granite", "glm4", "starcoder2",
    "seed_oss", "exaone4", "qwen3_moe",
)  # fmt: skip
SGLANG = ("olmo2", "smollm3", "granite", "glm4", "seed_oss", "qwen3_moe")
WINDOWS = ("mistral", "ministral", "phi3", "olmo3", "starcoder2")
"""SGLang has a window for them in its kernels for a GPU alone: here theirs is as long as the context."""


def cases() -> list[object]:
    """One family for each server is for every run of these tests, the others for the long ones."""
    first = [pytest.param(name, "gemma3_text", id=f"{name}-gemma3_text") for name in ("vllm", "sglang")]
    rest = [("vllm", family) for family in VLLM] + [("sglang", family) for family in (*SGLANG, *WINDOWS)]
    return [*first, *(pytest.param(*one, marks=pytest.mark.long, id="-".join(one)) for one in rest)]


@pytest.mark.parametrize(("name", "family"), cases())
def test_a_server_gives_the_log_probs_of_transformers_for_a_family_before_and_after_an_update(
    name: str, family: str, tmp_path: Path
) -> None:
    kind = Kind(name)
    if not kind.python.exists():
        pytest.skip(f"needs .venvs/{name}: make engines")
    window = {"sliding_window": CONTEXT} if name == "sglang" and family in WINDOWS else {}

    def write(folder: Path, seed: int) -> None:
        family_model(family, seed, **{**WIDE, **MORE.get(family, {}), **window}).save_pretrained(folder)
        write_character_tokenizer("0123456789+=", CONTEXT, folder)

    with served(kind, tmp_path, write, CONTEXT) as server:
        server.assert_parity(requests_of(8))
        server.models[Version(0, 0)] = server.new_model(1)
        # Under the names of the family's own files, as a learner publishes them.
        tensors = load_file(tmp_path / "model-1" / "model.safetensors")
        server.engine.load_weights(tensors, Version(0, 0), UpdateMode.KEEP)
        server.assert_parity(requests_of(8))
