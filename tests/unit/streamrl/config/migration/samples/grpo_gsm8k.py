"""GRPO on GSM8K, as TRL's documentation has it."""

import torch
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

model_name = "Qwen/Qwen2.5-1.5B-Instruct"
output_dir = "outputs/Qwen-1.5B-GRPO"
MAX_TOKENS = 786
R1_STYLE = "Respond in the following format."


def correctness_reward_func(prompts, completions, answer, **kwargs):
    return [2.0 * (text == answer[place]) for place, text in enumerate(completions)]


def get_questions(split="train"):
    data = load_dataset("openai/gsm8k", "main")[split]
    return data.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})


dataset = load_dataset("openai/gsm8k", "main", split="train")
dataset = dataset.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})

training_args = GRPOConfig(
    output_dir=output_dir,
    run_name="Qwen-1.5B-GRPO-gsm8k",
    learning_rate=5e-6,
    adam_beta1=0.9,
    adam_beta2=0.99,
    weight_decay=0.1,
    warmup_ratio=0.1,
    lr_scheduler_type="cosine",
    logging_steps=1,
    bf16=True,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_generations=16,
    max_prompt_length=256,
    max_completion_length=MAX_TOKENS,
    num_train_epochs=1,
    save_steps=100,
    max_grad_norm=0.1,
    beta=0.04,
    epsilon_high=0.28,
    loss_type="dr_grpo",
    scale_rewards=False,
    mask_truncated_completions=True,
    report_to="tensorboard",
    log_on_each_node=False,
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.3,
    vllm_importance_sampling_mode="token_truncate",
    vllm_importance_sampling_cap=2.0,
    dataloader_num_workers=torch.get_num_threads(),
    a_key_that_trl_has_not=1,
    reward_weights=[1.0, 0.5],
)

peft_config = LoraConfig(
    r=16,
    lora_alpha=64,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    task_type="CAUSAL_LM",
    lora_dropout=0.05,
)

if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=model_name,
        reward_funcs=[correctness_reward_func, accuracy_reward],
        args=training_args,
        train_dataset=dataset,
        eval_dataset=get_questions("test"),
        peft_config=peft_config,
    )
    trainer.train()
