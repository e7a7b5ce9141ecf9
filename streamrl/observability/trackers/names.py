"""Names of other systems for what a line of metrics says, so that dashboards made for them show a run of ours. Pure.

Guarantees: a figure is there only where its sources are, in the unit that the other system has it in. What has no equal
here (a reference's divergence where there is no reference, memory of GPUs, ...) is not there: no figure is made up.
Tokens are sampled ones: verl and prime-rl count those of prompts among their totals and their throughput.

Sources: what TRL's GRPO trainers, verl's `metric_utils.py` and prime-rl's trainer and orchestrator log, the latter by
the names of today and of before.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Names = Literal["none", "trl", "verl", "prime"]


class Equal(NamedTuple):
    """A key of ours; its value times `factor`, divided by that of the key `over` and, with `per_device`, by the number
    of the run's devices."""

    key: str
    factor: float = 1.0
    over: str | None = None
    per_device: bool = False


TRL: Final[Mapping[str, Equal]] = {
    "loss": Equal("loss/policy"),
    "grad_norm": Equal("grad/norm"),
    "learning_rate": Equal("learner/lr"),
    "reward": Equal("reward/mean"),
    "reward_std": Equal("reward/std"),
    "kl": Equal("loss/kl"),
    "entropy": Equal("loss/entropy"),
    "completions/mean_length": Equal("length/mean"),
    "completions/min_length": Equal("length/min"),
    "completions/max_length": Equal("length/max"),
    "completions/clipped_ratio": Equal("reward/truncated_share"),
    "frac_reward_zero_std": Equal("reward/zero_variance_share"),
    "clip_ratio/region_mean": Equal("ratio/clip_fraction"),
    "sampling/importance_sampling_ratio/mean": Equal("correction/weight_mean"),
    "sampling/sampling_logp_difference/max": Equal("mismatch/logprob_abs_max"),
    "sample/staleness_mean": Equal("staleness/mean"),
    "sample/staleness_max": Equal("staleness/max"),
    "sample/rollout_queue_size": Equal("queue/rows"),
    "perf/weight_sync_s": Equal("weights/seconds"),
    "perf/rollout_wait_s": Equal("time/wait"),
    "perf/fwd_bwd_s": Equal("time/forward_backward"),
    "step_time": Equal("time/step"),
    "num_tokens": Equal("tokens/trained"),
}

VERL: Final[Mapping[str, Equal]] = {
    "training/global_step": Equal("step"),
    "critic/score/mean": Equal("reward/mean"),
    "critic/rewards/mean": Equal("reward/mean"),
    "critic/vf_loss": Equal("critic/loss"),
    "critic/vf_clipfrac": Equal("critic/clip_fraction"),
    "critic/vf_explained_var": Equal("critic/explained_variance"),
    "critic/values/mean": Equal("critic/value_mean"),
    "actor/entropy": Equal("loss/entropy"),
    "actor/grad_norm": Equal("grad/norm"),
    "actor/lr": Equal("learner/lr"),
    "actor/pg_loss": Equal("loss/policy"),
    "actor/pg_clipfrac": Equal("ratio/clip_fraction"),
    "actor/kl_loss": Equal("loss/kl"),
    "rollout_corr/kl": Equal("mismatch/kl"),
    "rollout_corr/rollout_is_mean": Equal("correction/weight_mean"),
    "response_length/mean": Equal("length/mean"),
    "response_length/min": Equal("length/min"),
    "response_length/max": Equal("length/max"),
    "response_length/clip_ratio": Equal("reward/truncated_share"),
    "timing_s/step": Equal("time/step"),
    "timing_s/gen": Equal("time/wait"),
    "timing_s/update_actor": Equal("time/forward_backward"),
    "timing_s/update_weights": Equal("time/publish"),
    "timing_s/save_checkpoint": Equal("time/checkpoint"),
    "timing_per_token_ms/update_actor": Equal("time/forward_backward", 1000.0, "length/sum"),
    "perf/time_per_step": Equal("time/step"),
    "perf/total_num_tokens": Equal("length/sum"),
    "perf/throughput": Equal("length/sum", 1.0, "time/step", per_device=True),
}

PRIME: Final[Mapping[str, Equal]] = {
    "reward/mean": Equal("reward/mean"),
    "reward/all/mean": Equal("reward/mean"),
    "reward/all/std": Equal("reward/std"),
    "loss/mean": Equal("loss/policy"),
    "entropy/mean": Equal("loss/entropy"),
    "entropy/all/mean": Equal("loss/entropy"),
    "mismatch_kl/mean": Equal("mismatch/kl"),
    "mismatch_kl/all/mean": Equal("mismatch/kl"),
    "is_masked/mean": Equal("correction/rejected"),
    "off_policy_level/all/mean": Equal("staleness/mean"),
    "off_policy_level/all/max": Equal("staleness/max"),
    "is_truncated/all/mean": Equal("reward/truncated_share"),
    "train/agg/all/reward/mean": Equal("reward/mean"),
    "train/agg/all/is_truncated/mean": Equal("reward/truncated_share"),
    "train/agg/all/num_output_tokens/mean": Equal("length/mean"),
    "optim/lr": Equal("learner/lr"),
    "optim/grad_norm": Equal("grad/norm"),
    "perf/throughput": Equal("length/sum", 1.0, "time/step"),
    "time/step": Equal("time/step"),
    "time/wait_for_batch": Equal("time/wait"),
    "time/forward_backward": Equal("time/forward_backward"),
    "time/broadcast_weights": Equal("time/publish"),
    "time/save_ckpt": Equal("time/checkpoint"),
    "progress/total_tokens": Equal("tokens/trained"),
}

TABLES: Final[Mapping[Names, Mapping[str, Equal]]] = {"none": {}, "trl": TRL, "verl": VERL, "prime": PRIME}


class NamedFigures:
    """The figures of one system. num_devices: GPUs of the run, 1 where it has none.

    Example:
        >>> NamedFigures("verl").of({"time/step": 2.0, "length/sum": 100.0})["perf/throughput"]
        50.0
    """

    def __init__(self, names: Names, num_devices: int = 1) -> None:
        self._table = TABLES[names]
        self._num_devices = num_devices

    def of(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Of the numbers of a line, those that the system has, by its names."""
        values = {name: self._value(equal, numbers) for name, equal in self._table.items()}
        return {name: value for name, value in values.items() if value is not None}

    def _value(self, equal: Equal, numbers: Mapping[str, float]) -> float | None:
        value = numbers.get(equal.key)
        divisor = 1.0 if equal.over is None else numbers.get(equal.over, 0.0)
        if value is None or not divisor:
            return None
        return value * equal.factor / divisor / (self._num_devices if equal.per_device else 1)
