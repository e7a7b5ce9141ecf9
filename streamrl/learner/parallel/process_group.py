"""The learner's ranks: one process group from a rank, a size and a meeting.

Guarantees: rendezvous by a file, or at an address where ranks are on several machines, so no port is raced for; on one
machine gloo listens on loopback only;
bytes travel as uint8 tensors, never pickled; a collective in which a rank is late ends with an error, and a wait for
rank 0, which may wait for rows or for a disk, has no end but its death. `close` leaves nothing behind in this process.
Knows nothing of models.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from streamrl.errors import ComponentError
from streamrl.learner.parallel.meeting import Meeting
from streamrl.learner.parallel.rank_mesh import RankMesh
from streamrl.learner.parallel.sequence_parallel import SequenceRanks

LOOPBACK = "lo"

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}

_WITHOUT_LIMIT = timedelta(days=365)
"""As near as a group comes to it. That a rank has died is known at once, by its connection."""


@dataclass(frozen=True, slots=True)
class LearnerGroup:
    """The ranks as one of them sees them. Every method but `close` is a collective: all ranks call it, in
    order. `mesh` has the dimension `shard`, over which parameters are split, and behind it `tensor` where a layer is
    spread over `tensor_size` ranks, which see the same tokens. `beside` is the same again for another thread, in the
    memory of the CPU whatever `device` is: collectives of two threads on one GPU have no order that all ranks agree on.
    `waits` and `waits_beside`, for those two threads, are how the others wait for rank 0, however long; None for one
    rank. `sequence`: the ranks that the tokens of a row are spread over, and `peers` those that have other rows and the
    same place in a row; None where no row is spread."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    beside: DeviceMesh
    tensor_size: int = 1
    sequence: SequenceRanks | None = None
    peers: dist.ProcessGroup | None = None
    waits: dist.ProcessGroup | None = None
    waits_beside: dist.ProcessGroup | None = None

    @property
    def ranks(self) -> RankMesh:
        """Who has rows of its own, and who has the same."""
        return RankMesh.of(self.world_size, self.tensor_size, self.sequence_size)

    @property
    def sequence_size(self) -> int:
        """Ranks that the tokens of a row are spread over."""
        return 1 if self.sequence is None else self.sequence.size

    @property
    def data_rank(self) -> int:
        """Whose rows this rank has, of `data_size`."""
        return self.ranks.data_rank(self.rank)

    @property
    def data_size(self) -> int:
        return self.ranks.data_size

    @property
    def shard_size(self) -> int:
        """Ranks that parameters are split over, each with gradients of its own rows or tokens."""
        return self.world_size // self.tensor_size

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks that have different rows, in place and returned."""
        if self.data_size > 1:
            group = self.mesh["shard"].get_group() if self.peers is None else self.peers
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        return tensor

    def sum_over_shards(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks that have different parts of the parameters that are not spread, in place and returned."""
        if self.shard_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self.mesh["shard"].get_group())
        return tensor

    def sum_over_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks that have the same tokens, in place and returned."""
        if self.tensor_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self.mesh["tensor"].get_group())
        return tensor

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """The maximum over ranks, in place and returned. NaN is not kept: sum what may be NaN."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def max_int(self, value: int) -> int:
        if self.world_size == 1:
            return value
        return int(self.max(torch.tensor([value], device=self.device)).item())

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """Rank 0's bytes on every rank; the others pass None, and wait for it without a limit."""
        if self.world_size == 1:
            return data or b""
        size = torch.tensor([len(data or b"")], dtype=torch.int64)
        dist.broadcast(size, src=0, group=self.waits)
        body = torch.empty(int(size.item()), dtype=torch.uint8)
        if self.rank == 0 and data:
            body.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(body, src=0, group=self.waits)
        return body.numpy().tobytes()

    def wait_for_first(self, beside: bool = False) -> None:
        """Hold the other ranks until rank 0 is here, without a limit: before a collective that rank 0 comes to only
        when it has room, or rows. beside: in the thread of `beside`."""
        if self.world_size > 1:
            dist.broadcast(torch.zeros(1, dtype=torch.uint8), src=0, group=self.waits_beside if beside else self.waits)

    def close(self) -> None:
        """End the group in this process."""
        dist.destroy_process_group()


def open_group(
    rank: int,
    world_size: int,
    meeting: Path | Meeting,
    *,
    device: torch.device,
    timeout_s: float = 120.0,
    tensor_size: int = 1,
    sequence_size: int = 1,
) -> LearnerGroup:
    """Join the group of `world_size` ranks that meet at the file `meeting` (one file for one group, once), or at an
    address.

    Gloo on CPU, NCCL on CUDA. tensor_size, sequence_size: ranks that a layer and the tokens of a row are spread over;
    their product divides `world_size`. Raises ComponentError when the others do not come within `timeout_s`, or a group
    is open already.
    """
    if dist.is_initialized():
        raise ComponentError("this process is in a process group already; close it before another is opened")
    limit, device = timedelta(seconds=timeout_s), _own(device, rank)
    interface = LOOPBACK if isinstance(meeting, Path) else meeting.interface
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    store = dist.FileStore(str(meeting), world_size) if isinstance(meeting, Path) else meeting.store(limit)
    try:
        dist.init_process_group(
            _BACKENDS[device.type],
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=limit,
        )
    except (RuntimeError, ValueError) as error:
        raise ComponentError(
            f"learner rank {rank} of {world_size} could not join its group at {_place(meeting)} within "
            f"{timeout_s:g} s: {error}"
        ) from error
    sequence, peers = _stretched(RankMesh.of(world_size, tensor_size, sequence_size), rank, limit, device)
    waits = [dist.new_group(timeout=_WITHOUT_LIMIT, backend="gloo") for _ in range(2)] if world_size > 1 else []
    mesh, beside = _meshes(device, world_size, tensor_size, limit)
    return LearnerGroup(rank, world_size, device, mesh, beside, tensor_size, sequence, peers, *waits)


def _place(meeting: Path | Meeting) -> str:
    return str(meeting) if isinstance(meeting, Path) else meeting.place


def _own(device: torch.device, rank: int) -> torch.device:
    """With its number, and the one that this thread computes on unless told: the only one that this process sees, or of
    several that of the rank."""
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    if not count:
        raise ComponentError(f'learner rank {rank} sees no GPU; set learner.device = "cpu", or install a CUDA torch')
    number = rank % count if device.index is None else device.index
    torch.cuda.set_device(number)
    return torch.device(device.type, number)


def _meshes(
    device: torch.device, world_size: int, tensor_size: int, timeout: timedelta
) -> tuple[DeviceMesh, DeviceMesh]:
    """Two with the same ranks, on groups of their own: of the device, and of the CPU."""
    cpu = torch.device("cpu")
    if tensor_size > 1:
        shards = world_size // tensor_size
        return _plane(device, shards, tensor_size, timeout), _plane(cpu, shards, tensor_size, timeout)
    mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    if world_size == 1:
        return mesh, mesh
    # A mesh over all ranks would be the first group again.
    second = dist.new_group(timeout=timeout, backend=_BACKENDS[cpu.type])
    return mesh, DeviceMesh.from_group(second, cpu.type, mesh_dim_names=("shard",))


def _plane(device: torch.device, shard_size: int, tensor_size: int, timeout: timedelta) -> DeviceMesh:
    """With groups of its own."""
    ranks = torch.arange(shard_size * tensor_size).reshape(shard_size, tensor_size)
    groups = [_mine(each, timeout, device) for each in (ranks.T, ranks)]
    return DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=("shard", "tensor"))


def _stretched(
    mesh: RankMesh, rank: int, timeout: timedelta, device: torch.device
) -> tuple[SequenceRanks, dist.ProcessGroup] | tuple[None, None]:
    """The ranks that have other stretches of the same rows, and those that have the same stretch of others."""
    if mesh.sequence_size == 1:
        return None, None
    ranks = torch.arange(mesh.world_size).reshape(mesh.data_size, mesh.sequence_size, mesh.tensor_size)
    sequence = _mine(ranks.transpose(1, 2).flatten(0, 1), timeout, device)
    peers = _mine(ranks.flatten(1).T, timeout, device)
    return SequenceRanks(sequence, mesh.sequence_rank(rank), mesh.sequence_size), peers


def _mine(ranks: torch.Tensor, timeout: timedelta, device: torch.device) -> dist.ProcessGroup:
    """Collective. A group for each row of `ranks`; this rank's."""
    return dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=timeout, backend=_BACKENDS[device.type])[0]
