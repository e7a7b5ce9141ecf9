"""The forward pass of a `GeneralModel` over packed tokens and its cache, laid out as `eager.plan` says.

Guaranteed: each row's numbers depend on its own tokens and cached keys only, as far as the model's own modules keep
rows independent; `TorchEngine.self_test` says whether they do. Each pass is made anew, so it is slower than the
families' own way.

Shapes: T packed tokens, N running slots, W written tokens.
"""

from dataclasses import dataclass
from functools import partial

import torch

from streamrl.engines.torch.eager.attention import QUERY_BLOCK, round_up
from streamrl.engines.torch.eager.decoder import Outcome
from streamrl.engines.torch.eager.passes import Group, to_device, upload_groups
from streamrl.engines.torch.eager.plan import Plan
from streamrl.engines.torch.general.attention import Form, attend, hidden_of
from streamrl.engines.torch.general.cache import LayeredCache
from streamrl.engines.torch.general.linear_layers import linear_layers_by
from streamrl.engines.torch.general.mixing import Prompts, mix_tokens, prompts_of
from streamrl.engines.torch.general.model import GeneralModel
from streamrl.engines.torch.general.weights import NamedWeights
from streamrl.engines.torch.products import RowProducts
from streamrl.engines.torch.sampling import SamplingRows, choose
from streamrl.models.mixers import Mix


@dataclass(frozen=True, slots=True)
class GeneralPass:
    """A plan on the device. kept: rows of a pass that decode, padding included. asked: int64, the packed tokens that
    give logits: these, and behind them the `scored` ones. last: int64 [N], the last place that each slot sees. length:
    places that are read. slot_of_row: int64 [rows]; row_of_slot as in Plan. source: None for the first W packed tokens.
    prompts: of what is read, by length."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    rows: int
    kept: int
    asked: torch.Tensor
    scored: int
    slots: int
    last: torch.Tensor
    length: int
    slot_of_row: torch.Tensor
    row_of_slot: torch.Tensor | None
    groups: tuple[Group, ...]
    source: torch.Tensor | None
    write_slots: torch.Tensor
    write_places: torch.Tensor
    prompts: tuple[Prompts, ...]

    decodes_only = False
    """Each pass is made anew."""


class GeneralDecoder:
    """Runs passes over a cache with whatever weights it is given."""

    sorts_rows = False
    reads_rests = False
    short = 0

    def __init__(
        self, model: GeneralModel, max_length: int, min_rows: int, device: torch.device, products: RowProducts
    ) -> None:
        self._model = model
        self._products = products
        self._min_rows = min_rows
        self._device = device
        self._places = torch.arange(round_up(max_length), device=device)

    def begin(self, plan: Plan, cache: LayeredCache) -> GeneralPass:
        count = len(plan.slot_positions)
        up = partial(to_device, device=self._device)
        slots = torch.arange(count, device=self._device)
        kept = max(plan.decode_rows, self._min_rows) if plan.decode_rows else 0
        first = torch.arange(kept, device=self._device)
        return GeneralPass(
            token_ids=up(plan.token_ids),
            positions=up(plan.positions),
            rows=plan.decode_rows,
            kept=kept,
            asked=first if plan.scored is None else torch.cat((first, up(plan.scored))),
            scored=0 if plan.scored is None else len(plan.scored),
            slots=count,
            last=up(plan.slot_positions),
            length=round_up(int(plan.slot_positions.max()) + 1) if count else 0,
            slot_of_row=slots if plan.slot_of_row is None else up(plan.slot_of_row),
            row_of_slot=None if plan.row_of_slot is None else up(plan.row_of_slot),
            groups=upload_groups(plan, self._device),
            source=None if plan.source is None else up(plan.source),
            write_slots=up(plan.slots),
            write_places=up(plan.places),
            prompts=prompts_of(plan, self._min_rows, self._device),
        )

    def advance(self, current: GeneralPass, token_ids: torch.Tensor) -> None:
        raise NotImplementedError("each pass is made anew")

    def choose(
        self, logits_NV: torch.Tensor, rows: SamplingRows, uniform_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `sampling.choose`."""
        return choose(logits_NV, rows, uniform_N)

    def forward(self, weights: NamedWeights, shared: GeneralPass, cache: LayeredCache) -> Outcome:
        """Run a pass. What is scored comes as logits: a model's head is its own matter."""

        def own(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: Form) -> torch.Tensor:
            return self._attend(layer, query, key, value, form, shared, cache)

        def mixed(module: int, forward: Mix, hidden: torch.Tensor) -> torch.Tensor:
            return mix_tokens(module, forward, hidden, shared, cache.states)

        with linear_layers_by(self._products):
            logits = self._model.logits(weights, shared.token_ids, shared.positions, shared.asked, own, mixed)
        scored = logits[shared.kept :] if shared.scored else None
        if not shared.rows:
            return Outcome(None, scored)
        logits = logits[: shared.rows]
        return Outcome(logits if shared.row_of_slot is None else logits.index_select(0, shared.row_of_slot), scored)

    def head(self, weights: NamedWeights, logits_RV: torch.Tensor) -> torch.Tensor:
        """The logits themselves."""
        return logits_RV

    def _attend(
        self,
        layer: int,
        query_THD: torch.Tensor,
        key_TKD: torch.Tensor,
        value_TKE: torch.Tensor,
        form: Form,
        shared: GeneralPass,
        cache: LayeredCache,
    ) -> torch.Tensor:
        """[T, heads, E]; zeros for padding."""
        written = len(shared.write_slots)
        if shared.source is None:
            key, value = key_TKD[:written], value_TKE[:written]
        else:
            key, value = key_TKD.index_select(0, shared.source), value_TKE.index_select(0, shared.source)
        cache.write(layer, key, value, shared.write_slots, shared.write_places)
        out = query_THD.new_zeros(*query_THD.shape[:2], value_TKE.shape[2])
        if shared.rows:
            out[: shared.rows] = self._decode(layer, query_THD[: shared.rows], form, shared, cache)
        for group in shared.groups:
            self._prefill(query_THD, key_TKD, value_TKE, form, group, out)
        return out

    def _decode(
        self, layer: int, query_RHD: torch.Tensor, form: Form, shared: GeneralPass, cache: LayeredCache
    ) -> torch.Tensor:
        """Of the decode rows over their slots, [rows, heads, E]."""
        rows, length = shared.slot_of_row, shared.length
        key, value = (tensor[layer][:, :, :length].index_select(0, rows) for tensor in (cache.keys, cache.values))
        kv_heads = key.shape[1]
        hidden = hidden_of(shared.last.index_select(0, rows), self._places[:length], form.window)
        attended = attend(
            query_RHD.unflatten(1, (kv_heads, -1)).flatten(0, 1)[:, :, None],
            key.flatten(0, 1),
            value.flatten(0, 1),
            hidden.repeat_interleave(kv_heads, 0)[:, None],
            form,
        )
        return attended.reshape(len(query_RHD), -1, value.shape[-1])

    def _prefill(
        self,
        query_THD: torch.Tensor,
        key_TKD: torch.Tensor,
        value_TKE: torch.Tensor,
        form: Form,
        group: Group,
        out_THE: torch.Tensor,
    ) -> None:
        """Causal attention of prompts of one rounded length, into `out`."""
        query, key, value = (
            x.index_select(0, group.gather).unflatten(0, (-1, group.padded)).transpose(1, 2)
            for x in (query_THD, key_TKD, value_TKE)
        )
        prompts, kv_heads = key.shape[:2]
        query = query.unflatten(1, (kv_heads, -1)).flatten(0, 1)
        key, value = key.flatten(0, 1), value.flatten(0, 1)
        parts = []
        for start in range(0, group.padded, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, group.padded)
            hidden = hidden_of(self._places[start:stop], self._places[:stop], form.window)[None]
            parts.append(attend(query[:, :, start:stop], key[:, :stop], value[:, :stop], hidden, form))
        attended = torch.cat(parts, dim=2).unflatten(0, (prompts, kv_heads)).flatten(1, 2).transpose(1, 2)
        flat = attended.flatten(0, 1).index_select(0, group.flat)
        out_THE.index_copy_(0, group.packed, flat.to(out_THE.dtype))
