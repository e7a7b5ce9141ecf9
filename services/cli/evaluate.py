"""`streamrl eval`. `main` makes a command of it."""

from typing import Annotated

from cyclopts import Parameter

from streamrl.errors import ConfigError
from streamrl.services.cli.options import Flag, Json, find, notice
from streamrl.services.commands.printed import print_facts


def evaluate(
    run: str | None = None,
    *,
    k: Annotated[int | None, Parameter(name="--k")] = None,
    temperature: float | None = None,
    tasks: str | None = None,
    limit: float | None = None,
    include: tuple[str, ...] = (),
    chat: Flag = False,
    as_json: Json = False,
) -> int:
    """Score the held-out items under the newest version, or published tasks by lm-evaluation-harness.

    What `--k` and `--tasks` measure is kept in `evaluations.jsonl` of the run folder, and shown by `status`, the page
    and the summary.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    k
        Complete each held-out item so often, for avg@k and pass@k.
    temperature
        Of these completions; that of `rollout.sampling` when absent.
    tasks
        Names of lm-evaluation-harness' tasks, with commas between: gsm8k,hellaswag. They are asked through the run's
        gateway (`gateway.enabled`, extra `eval`).
    limit
        Items of each task, or a share of them below 1; all of them when absent.
    include
        A folder with task files of your own; may be given several times.
    chat
        Put prompts of tasks through the model's chat template.
    """
    from streamrl.services.commands.exchange import evaluation

    of_tasks = limit is not None or bool(include) or chat
    if tasks is None and of_tasks:
        raise ConfigError("--limit, --include and --chat are of tasks; name some with --tasks")
    if temperature is not None and k is None:
        raise ConfigError("--temperature is of the completions of --k; give how many of each item")
    if tasks is not None and k is not None:
        raise ConfigError("--k is of the run's own held-out items, and --tasks of others; give one of them")
    found = find(run)
    if tasks is not None:
        names = [name.strip() for name in tasks.split(",") if name.strip()]
        tell = (lambda _: None) if as_json else notice
        facts = evaluation.evaluate_tasks(found, names, tell=tell, limit=limit, include=include, chat=chat)
    elif k is not None:
        facts = evaluation.evaluate_samples(found, k, temperature)
    else:
        facts = evaluation.evaluate(found)
    print_facts(facts, as_json)
    return 0
