"""Whether a model computes a row of a pack as it computes the row alone, shown at load.

Why: layers that mix tokens outside of attention (convolutions, linear attention, state spaces) know nothing of where a
row of a pack begins. Their states go on from the row before, and training goes on with wrong log-probs. `row_mixers`
gives them rows by themselves where it finds them; no list of model types keeps up with what is published, so each model
is asked.

Guarantees: a model that passes gives a row in company what it gives it alone, up to rounding. The price is two forwards
of a dozen tokens.
"""

import numpy as np
import torch
from torch import nn

from streamrl.errors import ConfigError
from streamrl.learner.batch.attention_layout import lay_out

ROWS = (7, 5)
"""Tokens of the rows of the pack; the last one is looked at."""
FARTHEST = 2e-5
"""Of a token's hidden state, relative to its length: a hundred times rounding in float32, a fiftieth of what a short
convolution does."""


@torch.no_grad()
def require_packable(decoder: nn.Module, what: str) -> None:
    """Raise ConfigError for a decoder that packed rows leave another way than rows alone, or that cannot compute a pack
    at all. what: it is called in the message. Only float32 is looked at: less exact numbers show nothing."""
    parameter = next(decoder.parameters())
    if parameter.dtype is not torch.float32 or parameter.is_meta:
        return
    try:
        together, alone = (_hidden(decoder, rows, parameter.device) for rows in (ROWS, ROWS[-1:]))
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError) as error:
        raise ConfigError(f"the learner cannot compute a pack of rows by {what}: {error}; {_WAY_OUT}") from error
    distance = (together[-len(alone) :] - alone).norm(dim=-1) / alone.norm(dim=-1)
    farthest = float(distance.max())
    if not farthest <= FARTHEST:
        raise ConfigError(
            f"the learner cannot pack rows for {what}: a row beside another one has hidden states that are "
            f"{farthest:.2g} off those that it has alone, so its layers mix tokens outside of attention; {_WAY_OUT}"
        )


_WAY_OUT = "use a model whose layers mix tokens by causal attention, convolutions or recurrences (Qwen3, Qwen3.5, LFM2)"


def _hidden(decoder: nn.Module, rows: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """[T, hidden] of rows that are packed. The last row has the same tokens whatever comes before it."""
    lengths = np.array(rows, np.int64)
    vocabulary = decoder.get_input_embeddings().num_embeddings
    ids = np.concatenate([(np.arange(length) * 7 + length) % vocabulary for length in rows])
    hidden: torch.Tensor = decoder(
        input_ids=torch.from_numpy(ids).to(device)[None],
        position_ids=torch.from_numpy(np.concatenate([np.arange(length) for length in rows])).to(device)[None],
        attention_mask=None,
        use_cache=False,
        segments=lay_out(lengths).to(device),
    ).last_hidden_state[0]
    return hidden
