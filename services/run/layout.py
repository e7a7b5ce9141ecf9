"""Where the parts of a run put what they write, inside the run folder."""

from pathlib import Path

from streamrl.config import Config

COMPLETIONS_FOLDER = "queue/completions"
SCORES_FOLDER = "queue/scores"
TRACE_FOLDER = "logs/trace"
STACKS_FOLDER = "logs/.stacks"
"""Of the files in which each process answers who asks for its stacks; gone with the run's owner."""
MODEL_FOLDER = "model"


def model_folder(run_folder: Path, config: Config) -> Path:
    """The Hugging Face folder that every process loads: architecture, tokenizer, weights before any training."""
    return Path(config.model.path).resolve() if config.model.path is not None else run_folder / MODEL_FOLDER


def start_folder(run_folder: Path, config: Config) -> Path:
    """The same with the weights that the stream begins with: after the warm-up, if there is one."""
    return run_folder / "start" if config.warmup.max_steps else model_folder(run_folder, config)
