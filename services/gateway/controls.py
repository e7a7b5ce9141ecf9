"""What a client may change of a live run, and how it stands: asked of the run's owner by its control socket.

The owner decides, by the rules of the configuration and by what the machine has left; here its answer becomes one of
HTTP. One question is asked at a time, so that clients hold no more than one thread, whatever they ask.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamrl.errors import ComponentError, ConfigError, DeadlineError, ResourceError, RunFolderError
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.services.run.control.client import ControlClient
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.scaling import KEYS

NAME_SHOWN = 80
"""Letters of a name that a client sent which it is told again."""


class ControlService:
    """See the module.

    Example:
        service = ControlService(run.path)
        await service.scale({"rollout": 4})       # {"rollout": 4, "before": 2}
    """

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._one_by_one = asyncio.Lock()

    async def sizes(self) -> dict[str, int]:
        """How many there are to be of each part that can be scaled. Raises Refusal."""
        return await self._ask("sizes", {}, None)

    async def scale(self, asked: Mapping[str, int | str]) -> dict[str, Any]:
        """Have so many of these parts from now on; what it was and is (`streamrl.services.run.scaling.outcome`). Waits
        for none of them to come or go. Raises Refusal."""
        for part in asked:
            if part not in KEYS:
                what = f"{part[:NAME_SHOWN]!a} cannot be scaled; what can: {', '.join(KEYS)}"
                raise invalid("unknown_part", what, part[:NAME_SHOWN])
        if not asked:
            raise invalid("missing_parameter", f"name a part and its number; what can be scaled: {', '.join(KEYS)}")
        return await self._ask("scale", asked, next(iter(asked)) if len(asked) == 1 else None)

    async def _ask(self, op: str, arguments: Mapping[str, Any], param: str | None) -> dict[str, Any]:
        async with self._one_by_one:
            try:
                return await asyncio.to_thread(self._answer, op, arguments)
            except ConfigError as error:
                raise invalid("invalid_value", str(error), param) from error
            except ResourceError as error:
                raise Refusal(409, "not_enough_resources", str(error), param) from error
            except DeadlineError as error:
                raise Refusal(504, "deadline_exceeded", str(error)) from error
            except (RunFolderError, ComponentError, ConnectionError) as error:
                raise Refusal(503, "run_not_ready", f"{error}; ask again soon") from error

    def _answer(self, op: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        # Read anew: who owns the run is written there.
        with ControlClient.of(RunFolder.open(self._run_folder)) as client:
            return client.ask(op, **arguments)
