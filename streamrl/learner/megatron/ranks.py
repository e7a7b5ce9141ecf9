"""The process groups of a layout: megatron-core's, on the learner's own group of all ranks, and the same again for the
thread that publishes weights.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.learner.parallel.meeting import Meeting
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.parallel.rank_mesh import RowRank
from streamrl.learner.parallel.sequence_parallel import SequenceRanks

_SEED = 1
"""Of megatron-core's generators. Nothing is drawn from them: weights are loaded, and there is no dropout."""


@dataclass(frozen=True, slots=True)
class Gatherers:
    """The groups that bring together what ranks have parts of, as one of their ranks sees them, for one thread. device:
    where their tensors meet."""

    tensor: dist.ProcessGroup
    expert_tensor: dist.ProcessGroup
    expert: dist.ProcessGroup
    pipeline: dist.ProcessGroup
    device: torch.device

    @classmethod
    def of_megatron(cls, device: torch.device) -> "Gatherers":
        return cls(
            tensor=parallel_state.get_tensor_model_parallel_group(),
            expert_tensor=parallel_state.get_expert_tensor_parallel_group(),
            expert=parallel_state.get_expert_model_parallel_group(),
            pipeline=parallel_state.get_pipeline_model_parallel_group(),
            device=device,
        )

    def again(self, timeout: timedelta) -> "Gatherers":
        """Collective of all ranks. New groups of the same ranks, in the memory of the CPU: collectives of two threads
        on one group have no order."""
        groups = (self.tensor, self.expert_tensor, self.expert, self.pipeline)
        return Gatherers(*(_again(group, timeout) for group in groups), torch.device("cpu"))

    def cut(self, of_experts: bool) -> dist.ProcessGroup:
        """The ranks that a matrix is cut over."""
        return self.expert_tensor if of_experts else self.tensor

    def from_stage(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """Collective of the stages of a pipeline: what stage `stage` has, on each, in place and returned."""
        if self.pipeline.size() > 1:
            dist.broadcast(tensor, src=dist.get_global_rank(self.pipeline, stage), group=self.pipeline)
        return tensor


def _again(group: dist.ProcessGroup, timeout: timedelta) -> dist.ProcessGroup:
    everyones: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, dist.get_process_group_ranks(group))
    ranks = sorted({tuple(one) for one in everyones})
    return dist.new_subgroups_by_enumeration([list(one) for one in ranks], timeout=timeout, backend="gloo")[0]


def gathered(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Collective. What each rank of a group has, in their order. All have the same shape."""
    if group.size() == 1:
        return [tensor]
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts


@dataclass(frozen=True, slots=True)
class MegatronRanks:
    """The ranks as one of them sees them. group: all of them. gatherers: for the thread that trains, and beside it for
    the one that publishes."""

    group: LearnerGroup
    layout: MegatronLayout
    gatherers: Gatherers
    beside: Gatherers

    @property
    def data_rank(self) -> int:
        """Whose rows this rank has."""
        return self.layout.data_rank(self.group.rank)

    @property
    def data_size(self) -> int:
        return self.layout.data_size

    @property
    def stage(self) -> int:
        """Which stage of its pipeline this rank is."""
        return self.layout.stage(self.group.rank)

    @property
    def tensor_rank(self) -> int:
        return self.gatherers.tensor.rank()

    @property
    def expert_rank(self) -> int:
        """Which experts this rank has, of `layout.expert`."""
        return self.gatherers.expert.rank()

    @property
    def sequence(self) -> SequenceRanks | None:
        """The ranks that a pack's tokens are spread over; None where each has all of them."""
        if self.layout.context == 1:
            return None
        group = parallel_state.get_context_parallel_group()
        return SequenceRanks(group, self.layout.context_rank(self.group.rank), self.layout.context)

    @property
    def reports(self) -> bool:
        """Whether the sums over this rank's rows are told by this one: they are known on the last stage, by each of its
        tensor ranks and of those that have other tokens of a pack."""
        first = self.tensor_rank == 0 and self.layout.context_rank(self.group.rank) == 0
        return first and self.stage == self.layout.pipeline - 1

    @property
    def row_rank(self) -> RowRank:
        return RowRank(self.data_rank, self.data_size, self.reports)

    def copies_group(self, of_experts: bool) -> dist.ProcessGroup:
        """The ranks that have the same part of a parameter."""
        if of_experts:
            return parallel_state.get_expert_data_parallel_group()
        return parallel_state.get_data_parallel_group(with_context_parallel=True)

    def sum_of_reports(self, tensor: torch.Tensor) -> torch.Tensor:
        """Collective. The sum over those that report, on each rank."""
        return self.group.sum(tensor if self.reports else torch.zeros_like(tensor))

    def close(self) -> None:
        """End the groups in this process."""
        parallel_state.destroy_model_parallel()
        self.group.close()


def open_ranks(
    rank: int,
    meeting: Path | Meeting,
    layout: MegatronLayout,
    *,
    device: torch.device,
    timeout_s: float = 120.0,
) -> MegatronRanks:
    """Join the ranks that meet there. Raises ComponentError as `open_group`."""
    group = open_group(rank, layout.world_size, meeting, device=device, timeout_s=timeout_s)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        distributed_timeout_minutes=timeout_s / 60,
        create_gloo_process_groups=False,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(_SEED)
    gatherers = Gatherers.of_megatron(group.device)
    beside = gatherers.again(timedelta(seconds=timeout_s)) if layout.world_size > 1 else gatherers
    return MegatronRanks(group, layout, gatherers, beside)
