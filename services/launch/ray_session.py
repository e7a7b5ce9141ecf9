"""Ray for one run: a local one of its own, or a cluster that the configuration names.

Guarantees for a local one: it listens on loopback only, with a token; it never joins nor touches a Ray that
is not ours; its files lie below `runtime`, which goes away with the run. Knows nothing of what runs on it.
The settings were measured; a test reads the listening sockets of the whole process tree to hold them.
"""

import os
import secrets
import socket
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from streamrl.config.estimates.machine import shared_memory_bytes
from streamrl.config.estimates.resources import store_lies_in_files
from streamrl.config.schema.run import RayConfig
from streamrl.errors import ComponentError, ConfigError, ResourceError
from streamrl.services.launch.ray_failure import explain, last_words, likely_causes, read_surroundings
from streamrl.services.run.folder import RunFolder, write_secret

# Read by Ray when it is imported, and inherited by its processes.
_LOCAL_ENVIRONMENT = {
    # The one switch that binds every listener to 127.0.0.1; it works on Linux too, undocumented.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Actors of ours have environments of their own: workers that Ray starts ahead would stand idle for ever.
    "RAY_prestart_worker_first_driver": "0",
    # Ray would give its workers nice 15, where any other busy process of the machine starves them: a start of 25
    # seconds took over 5 minutes beside two. Who wants a polite run says `nice streamrl up`, which all inherit.
    "RAY_worker_niceness": "0",
    # Of each file that an actor prints into, in the session's folder; the rest of Ray's own logs has this bound too.
    "RAY_ROTATION_MAX_BYTES": str(16 * 2**20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    # What actors print goes to the owner's log as it is: neither coloured nor held back as a repetition.
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",
}
# Each would make Ray join, or be found by, something that is not ours.
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The settings of the Ray job in which this process is the driver (`ray job submit`, KubeRay's RayJob)."""
_FOREIGN_VARIABLES = ("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_AUTH_TOKEN", _JOB_CONFIG)
_ANSWER_S = 10.0
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class RaySession(msgspec.Struct, frozen=True):
    """A started Ray. `notices` are sentences for the user about what was ignored or chosen."""

    address: str
    local: bool
    notices: tuple[str, ...] = ()


def start(run: RunFolder, config: RayConfig, runtime: Path) -> RaySession:
    """Start or join Ray for a run. Blocks for seconds; call it off the event loop. Ray must not be imported
    before the first start; a second one, after `stop`, keeps the token.

    Raises ResourceError when a local one does not start, ComponentError when a cluster does not let us in.
    """
    if config.address == "local":
        return _start_local(run, config, runtime)
    return _join(run, config.address)


def stop() -> None:
    """Leave Ray; a local one ends. Blocks for a second or two."""
    import ray

    ray.shutdown()


def prepare_local(environment: MutableMapping[str, str], token_path: Path) -> tuple[str, ...]:
    """Set what Ray reads from the environment; return a sentence for each foreign variable that was
    removed.
    """
    removed = [name for name in _FOREIGN_VARIABLES if environment.pop(name, None) is not None]
    environment.update(_LOCAL_ENVIRONMENT)
    environment["RAY_AUTH_TOKEN_PATH"] = str(token_path)
    return tuple(
        f"{name} in the environment is ignored: this run has a Ray of its own; to join a cluster set ray.address"
        for name in removed
    )


def local_options(config: RayConfig, runtime: Path, shared_memory_bytes: int) -> dict[str, Any]:
    """What `ray.init` is told of a Ray of our own. shared_memory_bytes: free ones."""
    in_files = store_lies_in_files(config.object_store_bytes, shared_memory_bytes)
    return {
        "include_dashboard": False,
        "num_cpus": config.num_cpus,
        "object_store_memory": config.object_store_bytes,
        "_temp_dir": str(runtime / "ray"),
        # Where Ray chose itself, it would fill /dev/shm to the last byte.
        **({"_plasma_directory": str(runtime)} if in_files else {}),
    }


def prepare_join(environment: MutableMapping[str, str]) -> bool:
    """Switch token authentication on if the environment has a token. Returns whether it has."""
    has_token = any(environment.get(name) for name in _TOKEN_VARIABLES)
    if has_token:
        environment.setdefault("RAY_AUTH_MODE", "token")
    environment.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if _JOB_CONFIG in environment:
        # A job has a working folder too, and Ray refuses two.
        environment["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    return has_token


def cluster_address(given: str, environment: Mapping[str, str]) -> str:
    """`host:port` of the cluster that `ray.address` names; `auto` is that of the Ray job of this process. Raises
    ConfigError outside of a job: a Ray that merely happens to run here is never joined."""
    if given != "auto":
        return given
    found = environment.get("RAY_ADDRESS", "")
    if not found or _JOB_CONFIG not in environment:
        raise ConfigError(
            'ray.address = "auto" is for a Ray job (`ray job submit`), and this is none; give the address of a cluster '
            'as "host:port", or "local"'
        )
    return found


def _start_local(run: RunFolder, config: RayConfig, runtime: Path) -> RaySession:
    if os.environ.get("RAY_AUTH_TOKEN_PATH") != str(run.token_path.resolve()):
        # Once in a process: Ray reads the token when it is imported, and keeps it for a second start.
        write_secret(run.token_path, secrets.token_hex(32).encode())
    notices = prepare_local(os.environ, run.token_path.resolve())
    try:
        address = _init("local", run, local_options(config, runtime, shared_memory_bytes()))
    except Exception as error:
        # As wide as that: where its node does not come up Ray raises a plain one.
        causes = likely_causes(read_surroundings(runtime), config.object_store_bytes, runtime)
        words = last_words(runtime / "ray" / "session_latest")
        raise ResourceError(explain(error, words, causes)) from error
    return RaySession(address, local=True, notices=notices)


def _join(run: RunFolder, address: str) -> RaySession:
    address = cluster_address(address, os.environ)
    has_token = prepare_join(os.environ)
    _require_answer(address)
    import ray

    try:
        return RaySession(_init(address, run, {}), local=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        token = "the token in the environment is not its" if has_token else "the environment has no token"
        raise ComponentError(
            f"cannot join the Ray at ray.address = {address!r}: {error}. Either nothing answers there, or "
            f"{token} (set RAY_AUTH_TOKEN_PATH to the cluster's token file); 'local' starts one of its own"
        ) from error


def _require_answer(address: str) -> None:
    """Somebody listens at `host:port`: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as error:
        raise ComponentError(
            f"nothing answers at ray.address = {address!r}: {error}; give the address of a Ray cluster's head "
            "(host:6379, mostly), or 'local', which starts one of its own"
        ) from error


def _init(address: str, run: RunFolder, options: Mapping[str, Any]) -> str:
    import ray

    # The empty working_dir keeps the current folder off the workers' path: a user's `services/` would
    # shadow ours.
    context = ray.init(
        address=address,
        namespace=f"streamrl-{run.run_id}",
        runtime_env={"working_dir": str(run.working_path.resolve())},
        log_to_driver=True,
        **options,
    )
    return str(context.address_info["gcs_address"])  # type: ignore[attr-defined]
