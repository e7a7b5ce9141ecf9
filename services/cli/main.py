"""The command line: parses, delegates, prints, and turns an error into one message and an exit code.

Guarantees: `--help` imports nothing beyond the parser; no command but `doctor`, `dpo`, `export`, `replay`,
`rescore`, `reward-model`, `sql` and `queue` imports torch, Ray or Arrow; a StreamRLError is a message without a
traceback. Exit codes: 0 done, 2 configuration, 3 resources, 4 a part failed, 130 interrupted, 143 ended by SIGTERM.
"""

import errno
import json
import sys
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from streamrl.errors import ConfigError, ResourceError, StreamRLError
from streamrl.services.cli.data import data
from streamrl.services.cli.deploy import deploy
from streamrl.services.cli.dpo import dpo
from streamrl.services.cli.evaluate import evaluate
from streamrl.services.cli.exchange import convert, export
from streamrl.services.cli.first_process import be_init_as_process_1
from streamrl.services.cli.inspect_rows import queue, sql
from streamrl.services.cli.options import EXIT_FAILED, Flag, Json, Rest, find, notice
from streamrl.services.cli.output import unbroken_output
from streamrl.services.cli.page import page
from streamrl.services.cli.rescore import rescore
from streamrl.services.cli.reward_model import reward_model
from streamrl.services.cli.submit import submit
from streamrl.services.cli.termination import end_on_termination
from streamrl.services.commands.printed import print_facts
from streamrl.system.standard_streams import hold_standard_streams

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = App(
    name="streamrl",
    help="Reinforcement-learning post-training of language models as a durable, exact stream.",
    version_flags=[],
    # Markdown would cost every --help 70 ms for its parser, boxes another 35 ms.
    help_format="plaintext",
    help_formatter="plain",
    result_action="return_value",
)
doctor = App(name="doctor", help="Measure what a configuration's own parts do, before a run.")
app.command(doctor)
app.command(data)
app.command(queue)
app.command(sql)
app.command(rescore)
app.command(reward_model)
app.command(dpo)
app.command(submit)
app.command(page)
app.command(deploy)
app.command(evaluate, name="eval")
app.command(export)
app.command(convert)


@app.command
def up(
    config: str,
    *rest: Rest,
    detach: Flag = False,
    fresh: Flag = False,
    name: str | None = None,
    accept_changed_data: Flag = False,
    as_json: Json = False,
) -> int:
    """Start, resume or show a run, and stay with it until it ends.

    More TOML files follow an `@`, single keys are given by their path; what comes later wins:
    `streamrl up a.toml @ b.toml --learner.optimizer.lr 1e-6`.

    Parameters
    ----------
    config
        A TOML file.
    detach
        Return when the run is up; `streamrl down` ends it.
    fresh
        Start a new folder, `NAME-2`, `NAME-3`, ... if `NAME` is taken.
    name
        Name of the run, instead of the configuration's.
    accept_changed_data
        Go on with a run though its data set is another one than before.
    as_json
        Print every event as a line of JSON.
    """
    from streamrl.services.commands.up import up as bring_up

    return bring_up(
        _checked(config, rest, name),
        detach=detach,
        fresh=fresh,
        as_json=as_json,
        accept_changed_data=accept_changed_data,
    )


@app.command
def check(
    config: str,
    *rest: Rest,
    name: str | None = None,
    world_size: int | None = None,
    gpu_gib: float = 80.0,
    as_json: Json = False,
) -> int:
    """Check a configuration, its data, code and models, and what it needs of this machine; start nothing.

    Parameters
    ----------
    config
        A TOML file; overlays and keys follow as for `up`.
    name
        Name of the run, instead of the configuration's.
    world_size
        Check a learner of so many ranks on megatron-core instead, wherever they are: its layout and each rank's memory.
    gpu_gib
        Memory of one of its GPUs, in GiB.
    as_json
        Print the resolved configuration as JSON.
    """
    import msgspec

    if world_size is not None:
        from streamrl.services.commands.world_size import check_layout

        return check_layout(config, rest, world_size, gpu_gib, as_json)
    from streamrl.services.commands.check import check_lines

    checked = _checked(config, rest, name)
    lines = check_lines(checked)
    if as_json:
        print(msgspec.json.encode(checked).decode())
    else:
        rank = checked.learner.lora.rank
        trained = f", adapters of rank {rank}" if rank else ""
        print(f"{config}: nothing wrong; run {checked.name}, {checked.learner.steps} steps{trained}")
        print(*lines, sep="\n", end="\n" if lines else "")
    return 0


@app.command
def status(run: str | None = None, *, live: Flag = False, as_json: Json = False) -> int:
    """Say how a run stands.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    live
        Exit with 4 unless the run is up and answers: for the health check of a container.
    """
    from streamrl.services.commands import run_verbs

    facts = run_verbs.status(find(run))
    print_facts(facts, as_json)
    return EXIT_FAILED if live and "phase" not in facts else 0


@app.command
def logs(
    run: str | None = None,
    component: str | None = None,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    lines: Annotated[int, Parameter(name=["--lines", "-n"])] = 20,
) -> int:
    """Show the last lines of the parts' logs.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    component
        Only this part: `owner`, `controller`, `rollout`, `reward`, `learner`, ...
    follow
        Go on with what is written, until the run ends.
    lines
        Lines of each log.
    """
    from streamrl.services.commands import run_verbs

    def show(part: str, line: str) -> None:
        print(f"{part:<12} {line}")

    run_verbs.show_logs(find(run), component, count=lines, follow=follow, show=show)
    return 0


@app.command
def why(run: str | None = None, *, as_json: Json = False) -> int:
    """Say what bounds a run's speed, and what ails its learning.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    """
    from streamrl.services.commands import run_verbs

    findings = run_verbs.why(find(run), notice)
    if as_json:
        print(json.dumps(findings))
        return 0
    for finding in findings:
        print(f"{finding['kind']}: {finding['text']}")
    if not findings:
        print("nothing stands out")
    return 0


@app.command
def replay(run: str | None = None, *, steps: int | None = None, num_workers: int | None = None) -> int:
    """Train again on the rollouts that a run recorded, and compare each step.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    steps
        Steps to make again; all that were recorded when absent.
    num_workers
        Learner ranks; the run's own number when absent.
    """
    found = find(run)
    # Behind the search: this one takes seconds to import.
    from streamrl.services.commands.replay import main as replay_run

    return replay_run(found, steps, num_workers)


@doctor.command
def parity(config: str, *rest: Rest, prompts: int = 64, as_json: Json = False) -> int:
    """Compare the engine's log-probs with those of the model that is trained, at one version.

    Parameters
    ----------
    config
        A TOML file; overlays and keys follow as for `up`.
    prompts
        Held-out prompts that are answered, and scored on both sides.
    as_json
        Print the figures as JSON.
    """
    import msgspec

    checked = _checked(config, rest, None)
    # Behind the check: this one takes seconds to import.
    from streamrl.services.commands.doctor import parity as compare

    print_facts(msgspec.to_builtins(compare(checked, prompts)), as_json)
    return 0


@app.command
def scale(*words: Annotated[str, Parameter(name="[RUN] PART=N", show_default=False)], as_json: Json = False) -> int:
    """Have more or fewer rollout replicas or reward children in a live run, from now on and after a restart;
    `rollout=auto` leaves the replicas to autoscaling.

    Parameters
    ----------
    words
        A run folder, or a name under `runs/` (the newest run when absent), then parts with their numbers: rollout=4
        reward=2.
    """
    from streamrl.services.commands import run_verbs

    run, asked = _run_and_numbers(words)
    print_facts(run_verbs.scale(find(run), asked), as_json)
    return 0


@app.command
def down(run: str | None = None, *, as_json: Json = False) -> int:
    """End a run: a clean stop with a checkpoint, then nothing of it left.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    """
    from streamrl.services.commands import run_verbs

    print_facts(run_verbs.down(find(run)), as_json)
    return 0


def main() -> None:
    """The console script `streamrl`."""
    be_init_as_process_1()
    end_on_termination()
    hold_standard_streams()
    sys.stdout = output = unbroken_output(sys.argv[1:])
    code = run_app(sys.argv[1:])
    output.flush()
    # An answer that nobody could write down is none; a run is worth something without what `up` shows of it.
    lost = output.lost is not None and output.lost.errno != errno.EPIPE and not output.goes_on
    sys.exit(code or (ResourceError.exit_code if lost else 0))


def run_app(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"streamrl: {_usage(error, arguments)}", file=sys.stderr)
        return EXIT_USAGE
    except StreamRLError as error:
        print(f"streamrl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _checked(path: str, rest: tuple[str, ...], name: str | None) -> Any:
    """The configuration of a command line, weighed against this machine. Raises ConfigError,
    ResourceError.
    """
    from streamrl.config import (
        ConfigProblems,
        ResourceProblems,
        check_resources,
        check_stores,
        check_trackers,
        load_args,
    )

    given = [*rest, *(["--name", name] if name is not None else [])]
    config = load_args(path, given)
    if wrong := [*check_trackers(config), *check_stores(config)]:
        raise ConfigProblems(tuple(wrong))
    problems = check_resources(config)
    if problems:
        raise ResourceProblems(tuple(problems))
    return config


def _run_and_numbers(words: tuple[str, ...]) -> tuple[str | None, dict[str, str]]:
    """The run, None for the newest, and the number of each part. Raises ConfigError."""
    asked = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    if len(names) > 1 or not asked or len(asked) + len(names) < len(words):
        raise ConfigError(
            f"give a part and its number, as rollout=4, after the run if it is not the newest: got {words}"
        )
    return (names[0] if names else None), asked


def _usage(error: CycloptsError, arguments: list[str]) -> str:
    """What is wrong with a command line, on one line, and where its right form is told."""
    known = [name for name in arguments[:1] if name in app]
    what = str(error)
    if isinstance(error, UnusedCliTokensError):
        what = f"{' '.join(known)} has no use for {', '.join(map(repr, error.unused_tokens or ()))}."
    return f"{what} See `{' '.join(['streamrl', *known, '--help'])}`."


if __name__ == "__main__":
    main()
