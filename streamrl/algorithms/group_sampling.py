"""How each rollout of a group is drawn: as the configuration says, or greedily where the others are judged by it. Pure.

One place for the replicas, the log of completions and the reference loop.
"""

from msgspec.structs import replace

from streamrl.config import Config
from streamrl.types import SamplingParams


class GroupSampling:
    """Example:
    sampling = GroupSampling(config)
    requests = [... sampling.of(sample_index) ... for sample_index in range(group_size)]
    """

    def __init__(self, config: Config) -> None:
        sampling = config.rollout.sampling
        self.drawn = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_new_tokens=sampling.max_new_tokens,
        )
        """Of every sample that is not greedy."""
        self._greedy = replace(self.drawn, temperature=0.0)
        self._greedy_index = config.greedy_sample

    def of(self, sample_index: int) -> SamplingParams:
        """How the sample of that number is drawn."""
        return self._greedy if sample_index == self._greedy_index else self.drawn
