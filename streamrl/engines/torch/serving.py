"""The weights that serve, and the sets that wait to.

Guaranteed: what serves changes whole or not at all. On a CPU a set lies over the memory of the tensors that it was made
of, and another one takes its place. `in_place`, as on every GPU, the set that serves stays where it is, since captured
graphs read it there: a new version is copied into a spare set beside the steps, and from there over the set that
serves, device to device. Without memory for a spare set it is copied from the host when it is loaded.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from transformers import PretrainedConfig

from streamrl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model: TypeAlias = "PreTrainedModel | PretrainedConfig"
"""With its weights, or without. The first is named alone: what it is takes two seconds to import."""
MARGIN = 2**30
"""Bytes of a GPU that a spare set leaves free."""


class WeightSet(Protocol):
    """One complete set: `weights.FusedWeights`, or `general.weights.NamedWeights`."""

    def copy_from(self, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def overwrite(self, other: Any) -> None: ...

    @property
    def nbytes(self) -> int: ...


class ServingWeights:
    """`current` serves. `prepare` may be called from any thread, all else from the one that steps.

    new: makes room for a set. over: makes one in the memory of tensors."""

    def __init__(
        self,
        new: Callable[[], WeightSet],
        over: Callable[[Mapping[str, torch.Tensor]], WeightSet],
        device: torch.device,
        *,
        in_place: bool,
    ) -> None:
        self._new, self._over, self._device, self._in_place = new, over, device, in_place
        self.current: Any = new()
        self._spares: list[WeightSet] = []
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # Of the last copy out of a spare set: the next one into it comes after.
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | WeightSet:
        """The part of a load that holds nobody up. Raises as `copy_from` does."""
        if not self._in_place:
            return self._over(tensors)
        spare = self._spare()
        if spare is None:
            return tensors
        self._fill(spare, tensors)
        return spare

    def _spare(self) -> WeightSet | None:
        with self._lock:
            if self._spares:
                return self._spares.pop()
        if self._stream is not None and torch.cuda.mem_get_info(self._device)[0] < self.current.nbytes + MARGIN:
            return None
        return self._new()

    def _fill(self, spare: WeightSet, tensors: Mapping[str, torch.Tensor]) -> None:
        if self._stream is None or self._copied is None:
            spare.copy_from(tensors)
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._copied)
            spare.copy_from(tensors)
        self._stream.synchronize()

    def hold(self, prepared: Mapping[str, torch.Tensor] | WeightSet) -> WeightSet:
        """A set that may be taken later, whatever becomes of the tensors."""
        prepared = self.prepare(prepared) if isinstance(prepared, Mapping) else prepared
        if not isinstance(prepared, Mapping):
            return prepared
        spare = self._new()
        self._fill(spare, prepared)
        return spare

    def take(self, prepared: Mapping[str, torch.Tensor] | WeightSet) -> None:
        """Serve it from the next pass on."""
        if not self._in_place:
            self.current = self.hold(prepared)
        elif not isinstance(prepared, Mapping):
            self.current.overwrite(prepared)
            if self._copied is not None:
                self._copied.record()
            self.give_back(prepared)
        else:
            self.current.copy_from(prepared)

    def give_back(self, held: WeightSet) -> None:
        """A held set is not going to be taken."""
        if self._in_place:
            with self._lock:
                self._spares.append(held)


def tensors_of(model: Model, tensors: Mapping[str, torch.Tensor] | None) -> Mapping[str, torch.Tensor]:
    """What a first set is filled from: `tensors`, or the model's own. Raises ConfigError for a configuration alone."""
    if tensors is not None:
        return tensors
    if isinstance(model, PretrainedConfig):
        raise ConfigError("the torch engine got a configuration without weights: pass `tensors`, or a model")
    # Each parameter under each of its names; buffers are the model's own business.
    return {name: parameter.data for name, parameter in model.named_parameters(remove_duplicate=False)}
