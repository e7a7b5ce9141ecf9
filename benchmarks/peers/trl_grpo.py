"""TRL's GRPOTrainer on the quickstart's task, model and batch: what a user would pick instead of streamrl.

Runs in an environment of its own (`.venvs/trl`), so it imports nothing of streamrl. Prints one JSON line with the
seconds of `train()` and its rollouts a second, and saves the trained model for the common scorer.

    python trl_grpo.py MODEL_FOLDER PROMPTS.jsonl OUT_FOLDER STEPS LEARNING_RATE THREADS SAVE_EVERY

SAVE_EVERY: steps between two models that are saved on the way, as OUT_FOLDER-STEP; 0 saves the last alone.
"""

import os

os.environ.update(HF_HUB_OFFLINE="1", WANDB_DISABLED="true", TOKENIZERS_PARALLELISM="false")

import json
import sys
import time
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GROUPS, GROUP_SIZE, MAX_NEW_TOKENS = 64, 8, 5


def main() -> None:
    model_folder, prompts, out = sys.argv[1:4]
    steps, learning_rate, threads = int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
    every = int(sys.argv[7])
    torch.set_num_threads(threads)
    rows = [json.loads(line) for line in Path(prompts).read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    end = tokenizer.eos_token_id

    def reward(completions, answer, completion_ids, **_):
        columns = zip(completions, answer, completion_ids, strict=True)
        return [float(text == wanted and ids[-1] == end) for text, wanted, ids in columns]

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32),
        args=config(steps, learning_rate),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows[: GROUPS * steps]),
        processing_class=tokenizer,
        callbacks=[SaveOnTheWay(out, every, tokenizer)] if every else [],
    )
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    trainer.model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps({"seconds": seconds, "rollouts_per_s": GROUPS * GROUP_SIZE * steps / seconds, **versions}))


class SaveOnTheWay(TrainerCallback):
    """Saves the model each `every` steps, for a scorer that is the same for both sides."""

    def __init__(self, out: str, every: int, tokenizer) -> None:
        self._out, self._every, self._tokenizer = out, every, tokenizer

    def on_step_end(self, args, state, control, model=None, **_) -> None:
        if state.global_step % self._every == 0:
            folder = f"{self._out}-{state.global_step}"
            model.save_pretrained(folder)
            self._tokenizer.save_pretrained(folder)


def config(steps: int, learning_rate: float) -> GRPOConfig:
    """The quickstart's settings in TRL's words: fp32, no KL, token-mean loss, one update a batch."""
    return GRPOConfig(
        output_dir="unused",
        per_device_train_batch_size=GROUPS * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_NEW_TOKENS,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        beta=0.0,
        temperature=1.0,
        epsilon_high=0.28,
        weight_decay=0.0,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        max_steps=steps,
        logging_steps=max(1, steps // 5),
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
    )


if __name__ == "__main__":
    main()
