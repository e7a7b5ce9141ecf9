"""What one learner rank publishes: its part of each version, and on rank 0 the version in shared memory.

Where adapters are trained the weights that they change, the base, are written once for each incarnation, before its
first version. Methods marked *collective* are called by every rank in the same order. It knows neither who asks for a
version nor when one may go.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from streamrl.config import Config
from streamrl.config.estimates import sizes as limits
from streamrl.errors import DataError
from streamrl.learner.backend import PublishedPolicy
from streamrl.services.run.folder import RunFolder
from streamrl.system.kernel_cache import compiles_kernels
from streamrl.types import Version
from streamrl.weights.delta.chain import version_before
from streamrl.weights.manifest import AdapterFacts, WeightManifest, base_version
from streamrl.weights.shm.shm import ALIGNMENT, ShmPublisher

SPARE_VERSIONS = 3
"""Versions that shared memory has room for beside one for each replica, where nothing else is said: the newest, the one
that is being written, and one that is being evaluated."""
SPARE_BASES = 2
"""Where adapters are published: of this learner, and of the one before it, whose versions need theirs until this one's
first is there."""

Span = AbstractContextManager[None]


def untold(part: str) -> Span:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """One rank's part of what a version holds, by name."""

    version: Version
    shards: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Written:
    """A version in shared memory, and the delta that leads to it. gather_s: what it took to bring the ranks' parts
    together; check_s: to copy it and look for NaN and infinity; encode_s: to make the delta. delta_bytes: 0 where there
    is none."""

    manifest: WeightManifest
    gather_s: float
    check_s: float
    encode_s: float
    delta_bytes: int


class VersionWriter:
    """See the module. One thread publishes; `unlink` may be called from another."""

    def __init__(self, run: RunFolder, config: Config, rank: int, policy: PublishedPolicy) -> None:
        self._run = run
        self._config = config
        self._rank = rank
        self._policy = policy
        self._publisher: ShmPublisher | None = None
        self.published: dict[str, Any] | None = None
        """What a checkpoint says of the version that was published last."""
        self._before: WeightManifest | None = None
        """Of that version."""
        self._base_of: int | None = None
        """The incarnation whose base is published."""
        self._base: WeightManifest | None = None
        self._replicas = config.rollout.replicas

    def expect_replicas(self, count: int) -> None:
        """Make room for as many versions as `count` replicas may hold."""
        self._replicas = count
        if self._publisher is not None:
            self._publisher.byte_budget = self._byte_budget()

    def publish(self, snapshot: WeightSnapshot, span: Callable[[str], Span] = untold) -> Written | None:
        """Collective. As `LearnerCore.publish`."""
        started, version = time.monotonic(), snapshot.version
        with span("gather"):
            self._publish_base(version)
            weights = self._gather(snapshot)
        if weights is None:
            return None
        gathered = time.monotonic()
        with span("write"):
            manifest = self._shared_memory().publish(weights, version, self._adapter_facts())
        self._check_published_again(manifest)
        self.published = {"step": version.step, "version": str(version), "digest": manifest.digest}
        del weights
        wrote = time.monotonic()
        with span("encode"):
            delta_bytes = self._publish_delta(manifest)
        check_s = self._shared_memory().check_s
        return Written(manifest, gathered - started, check_s, time.monotonic() - wrote, delta_bytes)

    def lack(self, incarnation: int) -> str:
        """Why shared memory has no room for a further version of an incarnation, in words; "" when it has."""
        base = self._base_bytes() if self._base_of != incarnation else 0
        return self._shared_memory().lack(self._version_bytes() + base)

    def unlink(self, versions: list[Version]) -> None:
        for version in versions:
            self._shared_memory().unlink(version)

    def keep_only(self, versions: list[Version]) -> None:
        """As `ShmPublisher.keep_only`."""
        self._shared_memory().keep_only(versions)

    def close(self) -> None:
        """Take the published versions back."""
        if self._publisher is not None:
            self._publisher.close()

    # ---- inside

    def _gather(self, snapshot: WeightSnapshot) -> list[tuple[str, torch.Tensor]] | None:
        """Collective. None on the ranks that only take part."""
        gathered = self._policy.gather(snapshot.shards)
        if self._rank == 0:
            return list(gathered)
        for _ in gathered:
            pass
        return None

    def _publish_base(self, version: Version) -> None:
        """Collective. What the adapters of an incarnation change, before the first of them; nothing where all weights
        are trained."""
        if not self._policy.num_base_parameters or self._base_of == version.incarnation:
            return
        weights = self._policy.gather_base()
        if self._rank == 0:
            self._base = self._shared_memory().publish(weights, base_version(version))
        else:
            for _ in weights:
                pass
        self._base_of = version.incarnation

    def _adapter_facts(self) -> AdapterFacts | None:
        lora = self._config.learner.lora
        return AdapterFacts(base=self._base, rank=lora.rank, alpha=limits.lora_alpha(lora)) if self._base else None

    def _publish_delta(self, manifest: WeightManifest) -> int:
        """Bytes of the delta against the version before, which other nodes take; 0 where there is none."""
        before, self._before = self._before, manifest
        wanted = self._config.weights.delta and self._config.rollout.resources is not None and compiles_kernels()
        if not wanted or before is None or before.version != version_before(manifest.version):
            return 0
        return self._shared_memory().publish_delta(before, manifest)

    def _check_published_again(self, manifest: WeightManifest) -> None:
        """What a resumed run publishes first was published before: to the bit, or the checkpoint is not that run's."""
        before, version = self.published, Version(*manifest.version)
        if before is not None and before["step"] == version.step and before["digest"] != manifest.digest:
            raise DataError(
                f"version {version} has weights of digest {manifest.digest}, but its checkpoint says that version "
                f"{before['version']} of the same step had {before['digest']}: the checkpoint is of another run, or "
                "the number format of the model was changed"
            )

    def _shared_memory(self) -> ShmPublisher:
        if self._publisher is None:
            threads, budget = self._config.learner.threads, self._byte_budget()
            self._publisher = ShmPublisher(self._run.run_id, self._run.key(), byte_budget=budget, threads=threads)
        return self._publisher

    def _byte_budget(self) -> int:
        if self._config.weights.byte_budget is not None:
            return self._config.weights.byte_budget
        versions = SPARE_VERSIONS + self._replicas
        return versions * self._version_bytes() + SPARE_BASES * self._base_bytes()

    def _version_bytes(self) -> int:
        """Bytes of one version, each tensor with the gap before it."""
        policy = self._policy
        return policy.num_parameters * policy.version_dtype.itemsize + policy.num_tensors * ALIGNMENT

    def _base_bytes(self) -> int:
        """The same of a base."""
        policy = self._policy
        return policy.num_base_parameters * policy.dtype.itemsize + policy.num_base_tensors * ALIGNMENT
