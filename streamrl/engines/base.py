"""The seam between a rollout replica and whatever samples its tokens.

An engine is a plain synchronous object that one thread owns and steps. It speaks batches: requests come in
lists and completions leave in lists, because a call for each sample or token would cost more than a small
model's forward pass. It knows ids, not text, and it answers under exactly one version at a time.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from streamrl.types import EngineStats, GenerationRequest, GenerationResult, PartialTokens, UpdateMode, Version

if TYPE_CHECKING:
    import torch


class Engine(Protocol):
    """Continuous batching behind a few verbs, all but `prepare` and `interrupt` for the one thread that steps it.

    Example:
        engine.submit(requests)
        while engine.has_work:
            for result in engine.step():
                ...
    """

    token_steps: ClassVar[bool]
    """Whether a step gives every running request one token. Otherwise a step takes in whatever a server has told, which
    it may have to wait for."""

    @property
    def version(self) -> Version:
        """The version that samples the next token."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything: requests running or waiting, or a drained update to finish."""
        ...

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Queue requests. One that can never run (too long, empty) comes back from the next `step` as
        FinishReason.ERROR; it never raises for a single bad request.

        One with tokens `so_far` goes on behind them: they keep their log-probs and versions, what is new is sampled
        by the version that serves, and all count towards `max_new_tokens`. One that had ended comes back at once.
        Where the engine is deterministic and that version sampled all of them, the result is equal to the bit to that
        of a request that was never interrupted."""
        ...

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests early; each comes back from the next `step` as ABORT with the tokens it had."""
        ...

    def prepare(self, tensors: "Mapping[str, torch.Tensor]") -> Any:
        """From any thread, beside the steps: the part of a load that holds nobody up. What it gives is for
        `load_weights`, in the place of `tensors`. Raises as that does."""
        ...

    def load_weights(self, tensors: "Mapping[str, torch.Tensor]", version: Version, mode: UpdateMode) -> None:
        """Take a complete set of Hugging Face named tensors as `version`.

        `keep` and `recompute` take effect before the next token; `drain` takes effect when the running requests
        are done, and starts no waiting request before. All tensors or none: on an error the old version serves
        on. The caller may let go of `tensors` when this returns, also for `drain`, and never changes them: an engine
        may serve from their memory for as long as it serves the version.
        """
        ...

    def step(self) -> list[GenerationResult]:
        """Advance every running request by at least one token and return those that finished. An engine without
        `token_steps` waits for news of some request, and returns what finished by it, if anything did.

        Raises ProcessDiedError when the engine cannot go on and another one could."""
        ...

    def interrupt(self) -> None:
        """From any thread: a `step` that waits, or else the next one, returns soon. Nothing where no step waits."""
        ...

    def partials(self, least: int, among: Collection[str] | None = None) -> list[PartialTokens]:
        """What running requests sampled since it was last told, of each with `least` such tokens or more. Of a request
        with tokens `so_far` these come first. among: ids of the requests that are asked for; of all when None."""
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Free the KV cache. Calls after this raise."""
        ...
