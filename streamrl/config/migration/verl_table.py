"""verl's keys, as `verl/trainer/config/ppo_trainer.yaml` and the DAPO recipe have them (0.5 to 0.9), and ours."""

from collections.abc import Mapping
from typing import Any, Final

from streamrl.config.migration.shared import NO_REPLAY, PACKED
from streamrl.config.migration.table import Left, Table, To, Units

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIM, CRITIC, ALGORITHM = f"{ACTOR}.optim", "critic", "algorithm"
CORRECTION = f"{ALGORITHM}.rollout_correction"
OVERLONG = (
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
"""Where the DAPO recipe has had it, release by release."""

AGGREGATIONS: Final[Mapping[Any, Any]] = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum-norm": "seq_mean_token_sum_norm",
}
ESTIMATES_IN_LOSS: Final[Mapping[Any, Any]] = {
    "kl": "k1+",
    "k1": "k1+",
    "k1+": "k1+",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
    "k3+": "k3+",
    "low_var_kl+": "k3+",
}
ESTIMATES_IN_REWARD: Final[Mapping[Any, Any]] = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
ADVANTAGES: Final[Mapping[Any, Any]] = {
    "gae": "gae",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "remax": "remax",
    "opo": "opo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}
LOSSES: Final[Mapping[Any, Any]] = {
    "vanilla": "ppo",
    "gspo": "gspo",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "geo_mean": "gmpo",
    "cispo": "cispo",
    "sapo": "sapo",
    "dppo_tv": "dppo",
    "dppo_kl": "dppo",
}
SCHEDULES: Final[Mapping[Any, Any]] = {"constant": "constant", "cosine": "cosine"}

_ONE_COPY = (
    "every rank holds its part of parameters and optimizer; learner.execution.offload keeps them in the CPU's memory"
)
_MEMORY = "an engine gets bytes of KV cache, and no share of a GPU's memory: set rollout.kv_bytes"
_TIMELINE = "profiles are streamrl's own: observe.trace"
_NO_VLM = "no images here: text alone is trained"
_R3 = "learner.router_replay takes the choices of the engine (R3), not those of an earlier pass of the learner"
_NEVER = "evaluation before and after is always done"
_OWN_DEADLINES = "see [deadlines]"
_FOLDERS = "everything of a run lies in its folder, <runs>/<name>"
_REFERENCE = "the reference is computed as the policy is"
_LOADER = "streamrl prepares prompts once and reads them by number"
_RESUME = "a run resumes by itself: the same `streamrl up`"
_TEMPLATE = "the chat template is the tokenizer's own"
_NO_ADAPTIVE = "the coefficient of the divergence stays what it is"
_MEGATRON = "see [learner.megatron], which has a key for each part of a layout"

TABLE: Final[Table] = {
    "data.train_files": Units(),
    "data.val_files": Units(),
    "data.prompt_key": Units(),
    "data.train_batch_size": Units(),
    "data.gen_batch_size": Left("groups are generated until a batch is full; there is no second size"),
    "data.val_batch_size": Left("evaluation has no batches: all items are submitted at once"),
    "data.max_prompt_length": To("data.max_prompt_tokens"),
    "data.max_response_length": To("rollout.sampling.max_new_tokens"),
    "data.filter_overlong_prompts": Units(),
    "data.truncation": Units(),
    "data.seed": To("seed"),
    "data.shuffle": Left("the order of prompts is a seeded permutation of each pass, always", unless=(True, None)),
    "data.val_max_samples": To("eval.max_items", {-1: 0}, "give eval.max_items: items of each set"),
    "data.train_max_samples": Left("all rows are trained on; cut the file", unless=(None, -1)),
    "data.apply_chat_template_kwargs.*": Units(),
    "data.apply_chat_template_kwargs": Units(),
    "data.reward_fn_key": Left("the row's columns reach the reward by name", unless=(None, "data_source")),
    "data.image_key": Left(_NO_VLM, unless=(None, "images")),
    "data.video_key": Left(_NO_VLM, unless=(None, "videos")),
    "data.audio_key": Left(_NO_VLM, unless=(None, "audios")),
    "data.return_*": Left(_LOADER, unless=(True, False, None)),
    "data.custom_cls.*": Left(
        "rows become prompts by data.columns, or by a task: a class of your own (docs/guides/tasks.md)"
    ),
    "data.tool_config_path": Left("tools are functions: environment.tools (docs/guides/environments.md)"),
    "data.trust_remote_code": Left("code of model folders is never run"),
    "data.dataloader_num_workers": Left(_LOADER),
    "data.filter_overlong_prompts_workers": Left(_LOADER, unless=(None, 1)),
    "data.tokenizer": Left("the tokenizer is the model folder's"),
    "data.sampler.*": Left("see [data.curriculum]"),
    "data.*": Left(_LOADER),
    f"{MODEL}.path": Units(),
    f"{MODEL}.enable_gradient_checkpointing": To("learner.execution.activation_checkpointing"),
    f"{MODEL}.lora_rank": To("learner.lora.rank"),
    f"{MODEL}.lora_alpha": Units(),
    f"{MODEL}.target_modules": Units(),
    f"{MODEL}.exclude_modules": Left("name what has an adapter: learner.lora.targets"),
    f"{MODEL}.use_remove_padding": Left(PACKED, unless=(True, False, None)),
    f"{MODEL}.use_fused_kernels": Left("see learner.execution.kernels", unless=(True, False, None)),
    f"{MODEL}.use_liger": Left("see learner.execution.kernels", unless=(True, False, None)),
    f"{MODEL}.use_shm": Left("weights lie in shared memory, always", unless=(True, False, None)),
    f"{MODEL}.trust_remote_code": Left("code of model folders is never run"),
    f"{MODEL}.custom_chat_template": Left(_TEMPLATE),
    f"{MODEL}.enable_activation_offload": Left("activations stay on the GPU; see learner.execution"),
    f"{MODEL}.fused_kernel_options.*": Left("see learner.execution.kernels"),
    f"{MODEL}.mtp.*": Left("speculative decoding is not here"),
    f"{MODEL}.tokenizer_path": Left("the tokenizer is the model folder's"),
    f"{MODEL}.*": Left("of verl's own model loader"),
    f"{ACTOR}.ppo_mini_batch_size": Units(),
    f"{ACTOR}.ppo_epochs": To("learner.ppo_epochs"),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": Units(),
    f"{ACTOR}.ppo_micro_batch_size": Left(
        "it is of all GPUs, and was given up in verl; set learner.micro_batch_tokens"
    ),
    f"{ACTOR}.ppo_max_token_len_per_gpu": Units(),
    f"{ACTOR}.use_dynamic_bsz": Units(),
    f"{ACTOR}.clip_ratio": Units(),
    f"{ACTOR}.clip_ratio_low": Units(),
    f"{ACTOR}.clip_ratio_high": Units(),
    f"{ACTOR}.clip_ratio_c": Units(),
    f"{ACTOR}.tau_pos": Units(),
    f"{ACTOR}.tau_neg": Units(),
    f"{ACTOR}.loss_agg_mode": Units(),
    f"{ACTOR}.loss_scale_factor": Units(),
    f"{ACTOR}.entropy_coeff": To("learner.algorithm.entropy_coef"),
    f"{ACTOR}.use_kl_loss": Units(),
    f"{ACTOR}.kl_loss_coef": Units(),
    f"{ACTOR}.kl_loss_type": Units(),
    f"{ACTOR}.policy_loss.*": Units(),
    f"{ACTOR}.tis_imp_ratio_cap": Units(),
    f"{ACTOR}.grad_clip": To("learner.optimizer.max_grad_norm"),
    f"{ACTOR}.ulysses_sequence_parallel_size": Units(),
    f"{ACTOR}.strategy": Units(),
    f"{ACTOR}.use_torch_compile": Left("see learner.execution.compile", unless=(True, False, None)),
    f"{ACTOR}.shuffle": Left("rows of a batch have no order in the loss", unless=(True, False, None)),
    f"{ACTOR}.use_prefix_grouper": Left(
        "what rows of a group have in common is computed once, always", unless=(True, False, None)
    ),
    f"{ACTOR}.data_loader_seed": Left("see seed", unless=(None, 42)),
    f"{ACTOR}.fsdp_config.param_offload": Units(),
    f"{ACTOR}.fsdp_config.optimizer_offload": Units(),
    f"{ACTOR}.fsdp_config.model_dtype": Left(
        "moments and sums are float32; model.dtype is the weights'", unless=(None, "fp32", "bf16")
    ),
    f"{ACTOR}.fsdp_config.*": Left(_ONE_COPY),
    f"{ACTOR}.megatron.tensor_model_parallel_size": Units(),
    f"{ACTOR}.megatron.pipeline_model_parallel_size": Units(),
    f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": Units(),
    f"{ACTOR}.megatron.context_parallel_size": Units(),
    f"{ACTOR}.megatron.expert_model_parallel_size": Units(),
    f"{ACTOR}.megatron.expert_tensor_parallel_size": Units(),
    f"{ACTOR}.megatron.sequence_parallel": Units(),
    f"{ACTOR}.megatron.use_distributed_optimizer": Units(),
    f"{ACTOR}.megatron.override_transformer_config.recompute_granularity": Units(),
    f"{ACTOR}.megatron.*": Left(_MEGATRON),
    f"{ACTOR}.checkpoint.*": Left("a checkpoint has all that a resume needs"),
    f"{ACTOR}.profiler.*": Left(_TIMELINE),
    f"{ACTOR}.router_replay.mode": To("learner.router_replay", {"disabled": None, "R3": True}, _R3),
    f"{ACTOR}.router_replay.*": Left(_R3),
    f"{ACTOR}.qat.*": Left("training in lower formats is not here"),
    f"{ACTOR}.freeze_vision_tower": Left(_NO_VLM),
    f"{ACTOR}.calculate_*": Left("entropy is always told"),
    f"{ACTOR}.entropy_*": Left("see learner.execution.logits_bytes"),
    f"{ACTOR}.use_remove_padding": Left(PACKED, unless=(True, False, None)),
    f"{ACTOR}.rollout_n": Left("see rollout.group_size"),
    f"{OPTIM}.lr": To("learner.optimizer.lr"),
    f"{OPTIM}.weight_decay": To("learner.optimizer.weight_decay"),
    f"{OPTIM}.betas": To("learner.optimizer.betas"),
    f"{OPTIM}.clip_grad": Left("verl takes actor.grad_clip for it", unless=(None, 1.0)),
    f"{OPTIM}.lr_warmup_steps": Units(),
    f"{OPTIM}.lr_warmup_steps_ratio": Units(),
    f"{OPTIM}.lr_scheduler_type": Units(),
    f"{OPTIM}.warmup_style": Units(),
    f"{OPTIM}.min_lr_ratio": To("learner.optimizer.min_lr_ratio"),
    f"{OPTIM}.num_cycles": Left("a cosine is half a period", unless=(None, 0.5)),
    f"{OPTIM}.total_training_steps": Left(
        "the course of the rate is that of the run, learner.steps", unless=(None, -1)
    ),
    f"{OPTIM}.optimizer": To(
        "learner.optimizer.kind",
        {"AdamW": "adamw", "adam": "adamw", "AdamW8bit": "adamw_8bit", "_AdamW8bit": "adamw_8bit"},
        "AdamW is what there is, and its 8-bit form",
    ),
    f"{OPTIM}.optimizer_impl": Left("see learner.optimizer.kind", unless=(None, "torch.optim")),
    f"{OPTIM}.zero_indexed_step": Left("the first step has its part of the warm-up", unless=(None, True)),
    f"{OPTIM}.*": Left("of verl's own optimizer"),
    "actor_rollout_ref.ref.*": Left(_REFERENCE),
    "actor_rollout_ref.hybrid_engine": Left("learner and replicas work at once", unless=(True, None)),
    "actor_rollout_ref.nccl_timeout": Left(_OWN_DEADLINES, unless=(None, 600)),
    f"{ROLLOUT}.name": Units(),
    f"{ROLLOUT}.n": To("rollout.group_size"),
    f"{ROLLOUT}.temperature": To("rollout.sampling.temperature"),
    f"{ROLLOUT}.top_p": Left(NO_REPLAY, unless=(None, 1, 1.0)),
    f"{ROLLOUT}.top_k": Left(NO_REPLAY, unless=(None, -1, 0)),
    f"{ROLLOUT}.do_sample": Left(
        "training samples; evaluation is greedy unless eval.samples says otherwise", unless=(True, None)
    ),
    f"{ROLLOUT}.dtype": To(
        "model.dtype", {"bfloat16": "bfloat16", "float32": "float32", "auto": None}, "weights are bfloat16 or float32"
    ),
    f"{ROLLOUT}.tensor_model_parallel_size": Units(),
    f"{ROLLOUT}.data_parallel_size": Left("see rollout.replicas", unless=(None, 1)),
    f"{ROLLOUT}.expert_parallel_size": Left("experts are not spread", unless=(None, 1)),
    f"{ROLLOUT}.pipeline_model_parallel_size": Left("an engine is spread by tensor_parallel alone", unless=(None, 1)),
    f"{ROLLOUT}.max_num_seqs": To("rollout.slots"),
    f"{ROLLOUT}.gpu_memory_utilization": Left(_MEMORY),
    f"{ROLLOUT}.max_model_len": Left("it is max_prompt_tokens + max_new_tokens"),
    f"{ROLLOUT}.max_num_batched_tokens": Units(),
    f"{ROLLOUT}.enforce_eager": Units(),
    f"{ROLLOUT}.enable_chunked_prefill": Left("the server's own default holds", unless=(True, None)),
    f"{ROLLOUT}.enable_prefix_caching": Left("the server's own default holds", unless=(True, None)),
    f"{ROLLOUT}.free_cache_engine": Left(
        "learner and replicas work at once: no cache is freed", unless=(True, False, None)
    ),
    f"{ROLLOUT}.load_format": Left(
        "weights come from the learner", unless=(None, "auto", "dummy", "dummy_dtensor", "safetensors")
    ),
    f"{ROLLOUT}.layered_summon": Left("weights come through shared memory", unless=(True, False, None)),
    f"{ROLLOUT}.log_prob_*": Left(
        "log-probs are computed in packs: learner.micro_batch_tokens", unless=(None, True, False, 16384)
    ),
    f"{ROLLOUT}.calculate_log_probs": Left("engines always tell log-probs", unless=(True, False, None)),
    f"{ROLLOUT}.mode": Left("replicas generate beside the learner, always", unless=(None, "async", "sync")),
    f"{ROLLOUT}.prompt_length": Left("see data.max_prompt_tokens"),
    f"{ROLLOUT}.response_length": Left("see rollout.sampling.max_new_tokens"),
    f"{ROLLOUT}.seed": Left("see seed", unless=(None, 42, 0)),
    f"{ROLLOUT}.val_kwargs.n": Units(),
    f"{ROLLOUT}.val_kwargs.temperature": Units(),
    f"{ROLLOUT}.val_kwargs.do_sample": Units(),
    f"{ROLLOUT}.val_kwargs.top_p": Left("evaluation draws from the whole distribution", unless=(None, 1, 1.0)),
    f"{ROLLOUT}.val_kwargs.top_k": Left("evaluation draws from the whole distribution", unless=(None, -1, 0)),
    f"{ROLLOUT}.multi_turn.*": Left(
        "rollouts of several turns are an environment's (docs/guides/environments.md)",
    ),
    f"{ROLLOUT}.agent.*": Left("rollouts of several turns are an environment's (docs/guides/environments.md)"),
    f"{ROLLOUT}.engine_kwargs.*": Left("give the server's own arguments: rollout.server.args"),
    f"{ROLLOUT}.checkpoint_engine.*": Left("see [weights]"),
    f"{ROLLOUT}.update_weights_bucket_megabytes": Left("see [weights]", unless=(None, 512, 2048)),
    f"{ROLLOUT}.enable_rollout_routing_replay": To("learner.router_replay", {True: True, False: None}, _R3),
    f"{ROLLOUT}.trace.*": Left(_TIMELINE),
    f"{ROLLOUT}.profiler.*": Left(_TIMELINE),
    f"{ROLLOUT}.*": Left("of verl's own engine; rollout.server.args has what the server takes"),
    f"{CRITIC}.optim.lr": To("learner.critic.optimizer.lr"),
    f"{CRITIC}.optim.weight_decay": To("learner.critic.optimizer.weight_decay"),
    f"{CRITIC}.optim.betas": To("learner.critic.optimizer.betas"),
    f"{CRITIC}.optim.lr_warmup_steps": Units(),
    f"{CRITIC}.optim.lr_warmup_steps_ratio": Units(),
    f"{CRITIC}.grad_clip": To("learner.critic.optimizer.max_grad_norm"),
    f"{CRITIC}.model.path": Units(),
    f"{CRITIC}.cliprange_value": To("learner.critic.value_clip"),
    f"{CRITIC}.*": Left(
        "the critic is trained as the policy is, on the same packs",
    ),
    f"{ALGORITHM}.adv_estimator": Units(),
    f"{ALGORITHM}.norm_adv_by_std_in_grpo": Units(),
    f"{ALGORITHM}.gamma": Units(),
    f"{ALGORITHM}.lam": Units(),
    f"{ALGORITHM}.use_kl_in_reward": Units(),
    f"{ALGORITHM}.kl_penalty": Units(),
    f"{ALGORITHM}.kl_ctrl.kl_coef": Units(),
    f"{ALGORITHM}.kl_ctrl.type": Left(_NO_ADAPTIVE, unless=(None, "fixed")),
    f"{ALGORITHM}.kl_ctrl.*": Left(_NO_ADAPTIVE),
    f"{ALGORITHM}.filter_groups.enable": To("learner.filter.zero_variance"),
    f"{ALGORITHM}.filter_groups.metric": Left(
        "groups are filtered by their reward", unless=(None, "acc", "score", "seq_reward", "seq_final_reward")
    ),
    f"{ALGORITHM}.filter_groups.max_num_gen_batches": Left("see learner.filter.limit, which counts groups in a row"),
    f"{ALGORITHM}.filter_groups.*": Left("see [learner.filter]"),
    f"{CORRECTION}.rollout_is": Units(),
    f"{CORRECTION}.rollout_is_threshold": Units(),
    f"{CORRECTION}.bypass_mode": Units(),
    f"{CORRECTION}.rollout_rs": Left(
        "give learner.algorithm.rejection: measure, level, low, high (docs/guides/algorithms.md)"
    ),
    f"{CORRECTION}.rollout_rs_threshold": Left("give learner.algorithm.rejection.high"),
    f"{CORRECTION}.*": Left("see [learner.algorithm.rejection]"),
    f"{ALGORITHM}.use_pf_ppo": Left("rows are not weighed by their reward"),
    f"{ALGORITHM}.pf_ppo.*": Left("rows are not weighed by their reward"),
    f"{ALGORITHM}.*": Left("no such term in the loss; docs/guides/algorithms.md has what there is"),
    "custom_reward_function.path": Units(),
    "custom_reward_function.name": Units(),
    "custom_reward_function.reward_kwargs.*": Left("give reward.options: what a function gets beside the row"),
    "reward.custom_reward_function.path": Units(),
    "reward.custom_reward_function.name": Units(),
    "reward.num_workers": To("reward.workers"),
    **{f"{place}.{key}": Units() for place in OVERLONG for key in ("enable", "len", "penalty_factor")},
    **{f"{place}.log": Left("reward/overlong_mean is always told", unless=(True, False, None)) for place in OVERLONG},
    "reward_model.reward_manager": Left("rewards are functions: [reward]", unless=(None, "naive", "dapo", "batch")),
    "reward.reward_manager.name": Left("rewards are functions: [reward]", unless=(None, "naive", "dapo", "batch")),
    "reward.reward_manager.*": Left("rewards are functions: [reward]"),
    "reward_model.reward_kwargs.max_resp_len": Left("it is rollout.sampling.max_new_tokens"),
    "reward.reward_kwargs.max_resp_len": Left("it is rollout.sampling.max_new_tokens"),
    "reward_model.enable": Left(
        "a reward model is a classifier of one label: reward.model.path (docs/guides/rewards.md)"
    ),
    "reward_model.sandbox_fusion.*": Left("programs run in streamrl's own sandbox: [sandbox]"),
    "reward.sandbox_fusion.*": Left("programs run in streamrl's own sandbox: [sandbox]"),
    "reward.reward_model.*": Left("a reward model is a classifier of one label: reward.model.path"),
    "reward_model.*": Left("a reward model is a classifier of one label: reward.model.path (docs/guides/rewards.md)"),
    "trainer.total_epochs": Units(),
    "trainer.total_training_steps": Units(),
    "trainer.n_gpus_per_node": Units(),
    "trainer.nnodes": Units(),
    "trainer.save_freq": Units(),
    "trainer.test_freq": Units(),
    "trainer.max_actor_ckpt_to_keep": To("checkpoint.keep"),
    "trainer.max_critic_ckpt_to_keep": Left("a checkpoint has the critic in it: checkpoint.keep"),
    "trainer.critic_warmup": Units(),
    "trainer.logger": Units(),
    "trainer.project_name": Units(),
    "trainer.experiment_name": Units(),
    "trainer.val_before_train": Left(_NEVER, unless=(True, None)),
    "trainer.val_only": Left("`streamrl eval` scores a run; there is no run that only evaluates"),
    "trainer.log_val_generations": Left("rollouts are on the run's page, and in `streamrl sql`"),
    "trainer.default_local_dir": Left(_FOLDERS),
    "trainer.default_hdfs_dir": Left(_FOLDERS),
    "trainer.rollout_data_dir": Left(_FOLDERS),
    "trainer.validation_data_dir": Left(_FOLDERS),
    "trainer.resume_mode": Left(_RESUME, unless=(None, "auto")),
    "trainer.resume_from_path": Left(_RESUME),
    "trainer.balance_batch": Left("packs are balanced over ranks, always", unless=(True, None)),
    "trainer.device": Left("GPUs are NVIDIA's here", unless=(None, "cuda")),
    "trainer.v1.sampler.max_off_policy_threshold": To("learner.max_staleness"),
    "trainer.v1.trainer_mode": Left(
        "replicas generate beside the learner, within learner.max_staleness",
        unless=(None, "sync", "separate_async", "colocate_async"),
    ),
    "trainer.*": Left("of verl's own trainer"),
    "async_training.staleness_threshold": Left("it is a share of samples; learner.max_staleness counts steps"),
    "async_training.*": Left("replicas generate beside the learner, within learner.max_staleness"),
    "rollout.*": Left("see [rollout]: its replicas are the run's own"),
    "global_profiler.*": Left(_TIMELINE),
    "distillation.*": Left('a teacher is learner.algorithm.reference with loss = "opd"'),
    "transfer_queue.*": Left("streamrl's queue is durable: [queue]"),
    "sandbox_fusion.*": Left("programs run in streamrl's own sandbox: [sandbox]"),
    "skip.*": Left("rollouts are generated; `streamrl replay` trains on those that were"),
    "ray_kwargs.*": Left("see [ray]"),
    "hydra.*": Left("of Hydra itself"),
    "defaults*": Left("of Hydra itself; give the file that it composes, or a script with its overrides"),
}
