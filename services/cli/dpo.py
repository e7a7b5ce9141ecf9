"""The command that trains a policy on preference pairs. `main` makes a command of it."""

from pathlib import Path
from typing import Literal

from streamrl.services.cli.options import Flag, Json


def dpo(
    preferences: str,
    *,
    model: str,
    out: str,
    steps: int = 200,
    batch_size: int = 64,
    lr: float = 1e-6,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    held_out: float = 0.1,
    eval_every: int = 20,
    seed: int = 0,
    threads: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
    skip_long: Flag = False,
    as_json: Json = False,
) -> int:
    """Train a model on preference pairs by direct preference optimisation, and write it as a Hugging Face folder.

    Parameters
    ----------
    preferences
        A file of JSON lines: {"prompt": "...", "chosen": "...", "rejected": "..."}.
    model
        What it begins with, and the reference: a Hugging Face folder with a language model, or the name of a preset.
    out
        The folder to write, for `model.path`.
    steps
        Updates.
    batch_size
        Pairs of one update.
    lr
        Peak rate; it decays linearly over the steps.
    beta
        How much a log-probability weighs that moves away from the reference's.
    label_smoothing
        The chance that a label is wrong, below 0.5.
    held_out
        Share of the pairs, prompts whole, that tell the accuracy and are never trained on.
    eval_every
        Steps between two looks at it.
    seed
        Of the order of the pairs, and of a preset's first weights.
    threads
        Threads that it computes with.
    dtype
        Number format of the weights that are written; it trains in float32.
    skip_long
        Leave out pairs that are longer than the model's context; without it they are errors.
    as_json
        Print every look as a line of JSON.
    """
    from streamrl.services.commands.training.dpo_training import train

    course = {"steps": steps, "batch_size": batch_size, "lr": lr, "eval_every": eval_every, "threads": threads}
    options = {**course, "beta": beta, "label_smoothing": label_smoothing, "held_out": held_out, "seed": seed}
    train(Path(preferences), model, Path(out), options, dtype=dtype, skip_long=skip_long, as_json=as_json)
    return 0
