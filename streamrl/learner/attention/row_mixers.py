"""Packs through modules that mix tokens outside of attention: each segment by itself, behind the prompt that it shares.

Guaranteed: a token's output depends on its own segment and its prompt alone. Segments of equal shape that lie beside
each other are one call; a prompt that is shared is computed again for each of them, as its state is not kept.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from streamrl.learner.batch.attention_layout import Run, SegmentLayout
from streamrl.models.mixers import Mix, mixers_of, replace_forward


class _Pack:
    """The layout of the pack that is computed now, or was computed last: its layers may be computed again."""

    segments: SegmentLayout | None = None

    def take(self, _module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.segments = kwargs.get("segments", self.segments)


def mix_by_segment(model: nn.Module, decoder: nn.Module) -> int:
    """Have every mixer of a model's decoder compute packs segment by segment; how many there are. Whichever of the two
    is called must be given `segments`; not every model hands it on."""
    mixers = mixers_of(decoder)
    if mixers:
        pack = _Pack()
        for one in (model, decoder):
            one.register_forward_pre_hook(pack.take, with_kwargs=True)
        for module in mixers:
            replace_forward(module, partial(_mixed, pack))
    return len(mixers)


def _mixed(pack: _Pack, own: Mix, hidden_1TH: torch.Tensor) -> torch.Tensor:
    """[1, T, hidden]."""
    if pack.segments is None:
        raise ValueError("a packed model needs `segments`; call it by PolicyModel")
    return torch.cat([_run(run, own, hidden_1TH[0], pack.segments) for run in pack.segments.runs])[None]


def _run(run: Run, own: Mix, hidden_TH: torch.Tensor, segments: SegmentLayout) -> torch.Tensor:
    """[count * q_len, hidden]."""
    if run.q_len == run.k_len:
        rows = hidden_TH.narrow(0, run.q_start, run.count * run.q_len)
    else:
        rows = hidden_TH.index_select(0, segments.kv_index.narrow(0, run.kv_start, run.count * run.k_len))
    return own(rows.unflatten(0, (run.count, run.k_len)))[:, run.k_len - run.q_len :].flatten(0, 1)
