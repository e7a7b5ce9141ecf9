"""The tool `python`: a program of the model's, run in the sandbox."""

from collections.abc import Awaitable, Callable

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.sandbox.program import Program
from streamrl.sandbox.sandbox import make_sandbox


def python_tool(config: SandboxConfig) -> Callable[[str], Awaitable[str]]:
    """The tool, with its sandbox. Raises ConfigError where this machine has none."""
    sandbox = make_sandbox(config)
    sandbox.start()

    async def python(code: str) -> str:
        """Runs a Python program, and gives back what it prints.

        Args:
            code: the program; it prints what is to be seen, and nothing is kept for the next one
        """
        finished = await sandbox.run(Program(source=code))
        text = finished.stdout.decode(errors="replace")
        if finished.succeeded:
            return text or "(it printed nothing)"
        error = finished.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"{text}Error: {error or finished.in_words(sandbox.limits)}"

    return python
