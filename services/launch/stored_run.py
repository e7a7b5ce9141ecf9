"""A claimed run folder against the run's second place (`checkpoint.folder`): whose that is, and which is ahead.

Guarantees: a place that another run uses is refused before anything of the folder is changed; a folder that is made
from a place has its `run.json` last, so one that is half made is made anew.
"""

import secrets
import shutil
from pathlib import Path

import msgspec

from streamrl.config import diff, dump
from streamrl.config.loading.convert import convert
from streamrl.config.loading.full_paths import full_paths
from streamrl.config.loading.toml_lines import parse_toml
from streamrl.config.schema.run import Config
from streamrl.errors import ComponentError, RunFolderError
from streamrl.services.run.folder import RunFolder, RunRecord
from streamrl.services.storage.ask import ask
from streamrl.services.storage.orders import Fetch, Take
from streamrl.services.storage.place import address_of, look, look_limit_s
from streamrl.storage.owners import Owner

PLACES = frozenset({"name", "runs", "checkpoint.folder"})
"""Where things lie may change from launch to launch; what is trained may not."""
FETCHED = frozenset({"fetched", "start", "metrics.jsonl"})
"""What a folder may hold that is being made from a place."""


def changed_keys(stored: Config, config: Config) -> list[str]:
    """The keys in which a run's own configuration differs from the one that it is to go on with. Paths count by their
    full names: a run of an earlier release has some as they were given."""
    return [key for key in diff(full_paths(stored), full_paths(config)) if key not in PLACES]


def record_of_place(path: Path, config: Config, *, fresh: bool) -> RunRecord | None:
    """Of the run that the place has, for a folder that is new; None where nobody used the place before.

    Raises RunFolderError where that run is of another configuration, is here under another folder, or is not to be gone
    on with.
    """
    if config.checkpoint.folder is None:
        return None
    owner = look(config).owner
    if owner is None:
        return None
    where = f"{address_of(config)} has the checkpoints of run {owner.run_id}"
    if fresh:
        raise RunFolderError(f"{where}, and --fresh goes on with none; give a name that is free there (--name)")
    changed = changed_keys(_config_of(owner), config)
    if changed:
        what = f"{where}, which was started with another configuration; it differs in {', '.join(changed)}"
        raise RunFolderError(f"{what}. Take that configuration, or another name (--name)")
    record = RunRecord(
        run_id=owner.run_id,
        name=config.name,
        created_ns=owner.created_ns,
        path=owner.folder,
        incarnation=owner.incarnation + 1,
    )
    if RunFolder.is_elsewhere(path, record):
        way_out = f"go on there (`streamrl up {owner.folder}/config.toml`), or give another name (--name)"
        raise RunFolderError(f"{where}, whose folder is {owner.folder}; {way_out}")
    return record


def clear_half_made(path: Path) -> None:
    """Remove what a launch left that died while it made a folder from a place."""
    for name in ("fetched", "start", "queue", "checkpoints"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / "metrics.jsonl").unlink(missing_ok=True)


def fetch_newer(path: Path, config: Config, *, queue: bool) -> list[str]:
    """Bring the place's newest checkpoint into the folder if that is ahead; what was done, in sentences. queue: the
    place's ledger, too, in the place of the folder's."""
    order = Fetch(address_of(config), str(path.resolve()), queue=queue, start=config.warmup.max_steps > 0)
    facts = ask(order, config.deadlines.upload_s)
    told = [f"checkpoint passed over: {line}" for line in facts["skipped"]]
    if facts["step"] is not None:
        told.append(f"the checkpoint of step {facts['step']} comes from {order.address}")
    if facts["aside"]:
        told.append(f"the queue that was here is older; it is kept in {facts['aside']}")
    return told


def go_on(run: RunFolder, config: Config) -> list[str]:
    """A folder that has its run already: fetch what the place has ahead of it. Raises RunFolderError where the place is
    another run's."""
    if config.checkpoint.folder is None:
        return []
    try:
        found = look(config)
    except ComponentError as error:
        # It may be away for a while; what is here is whole.
        return [f"{error}; the run goes on from its folder, and stores its checkpoints when it can"]
    owner = found.owner
    if owner is not None and owner.run_id != run.run_id:
        where = f"{address_of(config)} has the checkpoints of run {owner.run_id}, and this folder is run {run.run_id}"
        raise RunFolderError(f"{where}; give another checkpoint.folder, or another name (--name)")
    if owner is None or found.step is None:
        return []
    has_ledger = any(run.queue_path.rglob("*.log"))
    elsewhere = owner.token != run.record.store_token
    return fetch_newer(run.path, config, queue=elsewhere or not has_ledger)


def take_place(run: RunFolder, config: Config) -> None:
    """Make this launch the one that uses the place. Where that is not to be reached, the launch before it stays the one
    that does, and this one goes under its name. Raises ComponentError where there was none."""
    if config.checkpoint.folder is None:
        return
    token = secrets.token_hex(8)
    owner = Owner(
        run_id=run.run_id,
        name=run.name,
        created_ns=run.record.created_ns,
        folder=str(run.path.resolve()),
        incarnation=run.incarnation,
        token=token,
        config=dump(config),
    )
    try:
        ask(Take(address_of(config), owner), look_limit_s(config))
    except ComponentError:
        if run.record.store_token:
            return
        raise
    run.save(msgspec.structs.replace(run.record, store_token=token))


def _config_of(owner: Owner) -> Config:
    """As it was written down, without a look at what it names on this machine."""
    config, problems = convert(parse_toml(owner.config)[0])
    if problems:
        raise RunFolderError(
            f"the configuration of run {owner.run_id} is of another streamrl: {problems[0]}; use the version that "
            "wrote it, or give another name (--name)"
        )
    return config
