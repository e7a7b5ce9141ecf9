"""Whether the general way computes a model as transformers does, shown when an engine is made.

Why: the way relies on how a model calls its attention. One that does more than it says (another mask, positions of its
own, keys that layers share) would be sampled from silently wrong.
"""

import numpy as np
import torch

from streamrl.engines.torch.admission import Segment
from streamrl.engines.torch.eager.plan import plan_pass
from streamrl.engines.torch.general.cache import LayeredCache, ModelSizes
from streamrl.engines.torch.general.decoder import GeneralDecoder
from streamrl.engines.torch.general.model import WAY_OUT, GeneralModel
from streamrl.engines.torch.general.weights import NamedWeights
from streamrl.engines.torch.products import PlainProducts
from streamrl.errors import ConfigError

LENGTHS = (9, 6)
"""Tokens of two texts that are read beside each other, one of them first as a prompt."""
STEPS = 4
"""Tokens of each that are read one by one."""
FARTHEST = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Of a log-prob, from transformers' own."""


def require_exact(
    model: GeneralModel,
    weights: NamedWeights,
    sizes: ModelSizes,
    vocab_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise ConfigError for a model whose tokens, read as prompts and one by one, have other log-probs than by one
    forward of transformers."""
    most = max(LENGTHS)
    cache = LayeredCache(sizes, slots=len(LENGTHS), max_length=most, kv_bytes=2**40, dtype=dtype, device=device)
    decoder = GeneralDecoder(model, most, 1, device, PlainProducts())
    texts = [(np.arange(length) * 5 + 3 * length) % vocab_size for length in LENGTHS]
    farthest = 0.0
    for step in range(STEPS, 0, -1):
        places = np.array([length - step for length in LENGTHS])
        segments = [
            Segment(text[:place], (slot,)) for slot, (text, place) in enumerate(zip(texts, places, strict=True))
        ]
        tokens = np.array([text[place] for text, place in zip(texts, places, strict=True)])
        plan = plan_pass(tokens, places, segments if step == STEPS else (), (), 1)
        logits = decoder.forward(weights, decoder.begin(plan, cache), cache).logits
        assert logits is not None
        for slot, text in enumerate(texts):
            ids = torch.from_numpy(text[: places[slot] + 1]).to(device)
            plain = torch.log_softmax(model.plain_logits(weights, ids)[-1], -1)
            ours = torch.log_softmax(logits[slot], -1)
            farthest = max(farthest, float((plain - ours).abs().max()))
    if not farthest <= FARTHEST.get(dtype, 0.1):
        raise ConfigError(
            f"the torch engine cannot run models of type {model.kind!r} exactly: log-probs of tokens that are read one "
            f"by one are {farthest:.2g} off those of transformers; {WAY_OUT}"
        )
