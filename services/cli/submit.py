"""`streamrl submit`. `main` makes a command of it."""

from streamrl.services.cli.options import find, notice


def submit(run: str, file: str, *, stream: str = "clients") -> int:
    """Have a live run train on prompts of your own, and print what became of each, a line of JSON as it ends.

    The run needs `gateway.enabled = true`. A prompt that was submitted before is answered again, and not generated
    again: a broken submission is made again by the same command.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`.
    file
        A file of prompts, a JSON object a line: `prompt`, maybe `key`, and what the reward is to have. "-" reads
        standard input as it comes.
    stream
        The stream of prompts that they belong to (`gateway.stream_weights`).
    """
    from streamrl.services.commands.submit import submit_file

    def tell(line: str) -> None:
        print(line, flush=True)

    finished, dropped = submit_file(str(find(run).path), file, stream, tell)
    notice(f"{finished} finished, {dropped} dropped")
    return 0
