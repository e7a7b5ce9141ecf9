"""The learner's ranks: one process group from a rank, a size and a file.

Guarantees: rendezvous by a file, so no port is chosen or raced for; locally gloo listens on loopback only;
bytes travel as uint8 tensors, never pickled. `close` leaves nothing behind in this process. Knows nothing
of models.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from streamrl.errors import ComponentError

LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class LearnerGroup:
    """The ranks as one of them sees them. Every method but `close` is a collective: all ranks call it, in
    order. `beside` are the same ranks again, for collectives of another thread."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    beside: DeviceMesh

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in place and returned."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
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
        """Rank 0's bytes on every rank; the others pass None."""
        if self.world_size == 1:
            return data or b""
        size = torch.tensor([len(data or b"")], dtype=torch.int64, device=self.device)
        dist.broadcast(size, src=0)
        body = torch.empty(int(size.item()), dtype=torch.uint8, device=self.device)
        if self.rank == 0 and data:
            body.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(body, src=0)
        return body.cpu().numpy().tobytes()

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        """End the group in this process."""
        dist.destroy_process_group()


def open_group(
    rank: int,
    world_size: int,
    store_path: Path,
    *,
    device: torch.device,
    interface: str | None = LOOPBACK,
    timeout_s: float = 120.0,
) -> LearnerGroup:
    """Join the group of `world_size` ranks that meet at the file `store_path` (one file for one group, once).

    Gloo on CPU, NCCL on CUDA. interface: the network interface gloo binds; None lets it choose (ranks on
    several machines). Raises ComponentError when the others do not come within `timeout_s`, or a group is
    open already.
    """
    if dist.is_initialized():
        raise ComponentError("this process is in a process group already; close it before another is opened")
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.FileStore(str(store_path), world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        raise ComponentError(
            f"learner rank {rank} of {world_size} could not join its group at {store_path} within "
            f"{timeout_s:g} s: {error}"
        ) from error
    mesh = init_device_mesh(device.type, (world_size,))
    # A mesh over all ranks would be the first group again.
    second = dist.new_group(timeout=timedelta(seconds=timeout_s)) if world_size > 1 else None
    beside = mesh if second is None else DeviceMesh.from_group(second, device.type)
    return LearnerGroup(rank, world_size, device, mesh, beside)
