"""The command that trains a reward model. `main` makes a command of it."""

from pathlib import Path

from streamrl.services.cli.options import Flag, Json


def reward_model(
    preferences: str,
    *,
    model: str,
    out: str,
    steps: int = 200,
    batch_size: int = 64,
    lr: float = 1e-5,
    held_out: float = 0.1,
    eval_every: int = 20,
    centre: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    skip_long: Flag = False,
    as_json: Json = False,
) -> int:
    """Train a reward model on preference pairs, and write it as a Hugging Face model folder.

    Parameters
    ----------
    preferences
        A file of JSON lines: {"prompt": "...", "chosen": "...", "rejected": "..."}, and a "margin" if it is known.
    model
        What its decoder begins with: a Hugging Face folder with a language model, or the name of a preset.
    out
        The folder to write, for `reward.model.path`.
    steps
        Updates.
    batch_size
        Pairs of one update.
    lr
        Peak rate; it decays linearly over the steps.
    held_out
        Share of the pairs, prompts whole, that tell the accuracy and are never trained on.
    eval_every
        Steps between two looks at it.
    centre
        What the square of the sum of a pair's scores costs, which keeps scores near 0; 0.01 is usual.
    seed
        Of the order of the pairs, and of a preset's first weights.
    threads
        Threads that it computes with.
    skip_long
        Leave out pairs that are longer than the model's context; without it they are errors.
    as_json
        Print every look as a line of JSON.
    """
    from streamrl.services.commands.training.reward_training import train

    options = {"steps": steps, "batch_size": batch_size, "lr": lr, "held_out": held_out, "eval_every": eval_every}
    options |= {"centre": centre, "seed": seed, "threads": threads}
    train(Path(preferences), model, Path(out), options, skip_long=skip_long, as_json=as_json)
    return 0
