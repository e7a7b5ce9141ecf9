"""`streamrl export`, and `--push`: the newest checkpoint as a folder with its card, here or in a store, and that folder
on the model hub.

Guarantees: a repository's name, the token and the right to write there are checked before anything is exported; what is
exported stays in its folder whatever becomes of the push; our own mark is not pushed. A dry run asks nobody.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamrl import __version__
from streamrl.config import Config, load
from streamrl.errors import ComponentError, ConfigError, DataError
from streamrl.models.folders import MARK
from streamrl.observability.metrics import read_metrics
from streamrl.observability.plot import reward_curve
from streamrl.services.commands.exchange.model_card import CURVE, CardFacts, model_card
from streamrl.services.commands.exchange.readiness import require_checkpoint
from streamrl.services.run.folder import RunFolder, write_whole
from streamrl.storage.address import local_path
from streamrl.storage.published_folder import PublishedFolder
from streamrl.types import Version

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from streamrl.services.commands.exchange.export import ExportLayout

CARD: Final = "README.md"
_PACKAGES: Final = ("torch", "transformers", "safetensors")
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404


def export(run: RunFolder, to: str | Path, layout: "ExportLayout" = "hf") -> dict[str, Any]:
    """Write the newest checkpoint as a Hugging Face folder, or its adapters as one of peft's, with a model card.

    to: a folder, or the address of one in a store, whose commit object beside it is put last. Raises RunFolderError
    when there is no checkpoint, and ConfigError for a place that something else has, or that does not let us in; then
    nothing was written.
    """
    place = str(to)
    folder = local_path(place)
    if folder is not None:
        return _export_here(run, folder, layout)
    published = PublishedFolder(place)
    published.require_ours()
    with tempfile.TemporaryDirectory(prefix=".export-", dir=run.path) as made:
        done = _export_here(run, Path(made) / "model", layout)
        published.put(Path(made) / "model", {"run": run.run_id, "step": done["step"]})
    return {**done, "folder": place}


def _export_here(run: RunFolder, to: Path, layout: "ExportLayout") -> dict[str, Any]:
    # Not above: it takes seconds to import, and what is wrong with a push is said before.
    from streamrl.services.commands.exchange.export import export_newest

    step = export_newest(run, to, layout)
    write_card(run, to, step, layout)
    return {"run": run.name, "step": step, "folder": str(to)}


def push(
    run: RunFolder,
    to: str,
    layout: "ExportLayout",
    repo: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Export, and push the folder to `repo` (OWNER/NAME), which is made when it is not there.

    to: the folder here that is pushed. dry_run: export and say what would be pushed; no server is asked. Raises
    ConfigError for a name that is none, an address that is no folder here, and without a token or the right to write;
    ComponentError when the hub does not answer.
    """
    _check_name(repo)
    folder = local_path(to)
    if folder is None:
        raise ConfigError(f"--push pushes a folder of this machine, and --to {to} is none; export there by itself")
    if dry_run:
        done = _export_here(run, folder, layout)
        files = _files(folder)
        return {**done, "repo": repo, "would_push": files, "bytes": sum(files.values())}
    require_checkpoint(run)
    api = _api()
    with _explained(repo):
        made = api.create_repo(repo, repo_type="model", private=private or None, exist_ok=True)
    done = _export_here(run, folder, layout)
    tell(f"pushes {len(_files(folder))} files to {made}; they stay in {folder}")
    with _explained(repo, f"; what is exported is in {folder}"):
        message = f"streamrl: run {run.name}, step {done['step']}"
        pushed = api.upload_folder(
            repo_id=repo, folder_path=folder, repo_type="model", commit_message=message, ignore_patterns=[MARK, ".*"]
        )
    return {**done, "repo": repo, "url": str(made), "commit": str(pushed.oid)}


def write_card(run: RunFolder, folder: Path, step: int, layout: "ExportLayout") -> None:
    """README.md and the curve, beside an exported model."""
    curve = _write_curve(run, folder)
    write_whole(folder / CARD, model_card(_facts(run, load(run.config_path), step, layout, curve)).encode())


def _write_curve(run: RunFolder, folder: Path) -> bool:
    """The run's own picture, drawn anew: it ends at the newest step. False where there is nothing to draw."""
    try:
        reward_curve(run.metrics_path, folder / CURVE, run.name)
    except DataError:
        return False
    return True


def _facts(run: RunFolder, config: Config, step: int, layout: "ExportLayout", curve: bool) -> CardFacts:
    lines = [line for line in read_metrics(run.metrics_path) if line["step"] <= step]
    scored = [line for line in lines if isinstance(line.get("eval/score"), int | float)]
    scores = {"score before": scored[0]["eval/score"], "score": scored[-1]["eval/score"]} if scored else {}
    more = scored[-1] if scored else {}
    for name in ("avg@", "pass@"):
        scores |= {key.removeprefix("eval/"): value for key, value in more.items() if name in key and value is not None}
    versions = [str(line["version"]) for line in lines if line["step"] == step and line.get("version")]
    return CardFacts(
        name=run.name,
        config=config,
        step=step,
        version=versions[-1] if versions else str(Version(run.incarnation, step)),
        layout=layout,
        scores={name: float(value) for name, value in scores.items()},
        evaluations=run.evaluations(),
        packages={"streamrl": __version__, **{name: found for name in _PACKAGES if (found := _version(name))}},
        curve=curve,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _files(folder: Path) -> dict[str, int]:
    """What is pushed, with its bytes."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path.stat().st_size for path in found}
    return {name: size for name, size in names.items() if name != MARK and not name.startswith(".")}


def _check_name(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {repo!r} is no name of a repository: {error}") from error
    if "/" not in repo:
        raise ConfigError(f"--push {repo!r} names no owner; give OWNER/{repo}")


def _api() -> "HfApi":
    """Of the hub, with the user's token. Raises ConfigError without one, and where the hub is switched off."""
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it, or give --dry-run")
    token = get_token()
    if token is None:
        raise ConfigError("there is no token of the hub: set HF_TOKEN, or log in by `hf auth login`")
    return HfApi(token=token)


@contextmanager
def _explained(repo: str, kept: str = "") -> Iterator[None]:
    """Turn what the hub refuses into one message. kept: what is not lost, in words."""
    # The latter is its HTTP library's, whichever it is.
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        said = (error.server_message or "").strip() or f"it answered {status}"
        if status == _UNAUTHORIZED:
            what = "the hub does not know the token: set HF_TOKEN to one that it gave out, or log in by `hf auth login`"
        elif status == _FORBIDDEN:
            what = (
                f"the token has no right to write to {repo} ({said}): take one with the role `write`, or another owner"
            )
        elif status == _NOT_FOUND:
            what = f"there is no {repo} that the token may see ({said})"
        else:
            raise ComponentError(f"{repo} cannot be pushed: the hub says: {said}{kept}; try again") from error
        raise ConfigError(f"{what}{kept}") from error
    except (HTTPError, OSError) as error:
        raise ComponentError(f"{repo} cannot be pushed: the hub does not answer: {error}{kept}; try again") from error
    except (ValueError, RuntimeError) as error:  # what the library makes of an answer that it does not expect
        raise ComponentError(f"{repo} cannot be pushed: {error}{kept}") from error
