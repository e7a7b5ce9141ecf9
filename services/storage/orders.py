"""What a child process is told to do at a store, and what it answers. Plain data, as JSON."""

from typing import Any

import msgspec

from streamrl.storage.owners import Owner


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Put, read, list and remove something under an address."""

    address: str


class Look(msgspec.Struct, frozen=True, tag=True):
    """Who uses an address, and which checkpoints lie there."""

    address: str


class Take(msgspec.Struct, frozen=True, tag=True):
    """Make a launch the one that uses an address."""

    address: str
    owner: Owner


class Upload(msgspec.Struct, frozen=True, tag=True):
    """Commit the newest checkpoint of a run folder under an address. token: of the launch that uses it."""

    address: str
    run_folder: str
    token: str
    keep: int
    byte_budget: int | None


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Bring the newest whole checkpoint of an address into a run folder, if the folder has none that is as new.

    queue: the ledger of the address, too, in the place of the one that is there. start: the weights after the warm-up
    are needed, too.
    """

    address: str
    run_folder: str
    queue: bool
    start: bool


Order = Probe | Look | Take | Upload | Fetch


class Job(msgspec.Struct, frozen=True):
    """What a child reads from its standard input. parent: pid of who started it."""

    parent: int
    order: Order


class Answer(msgspec.Struct, frozen=True):
    """error: as `streamrl.services.run.control.server.described` has it; None where it went well."""

    error: dict[str, Any] | None
    facts: dict[str, Any] = {}


class Looked(msgspec.Struct, frozen=True):
    """owner: None where nobody ever used the address. step: of the newest checkpoint there, None without any; whether
    it is whole shows when it is fetched."""

    owner: Owner | None
    step: int | None
