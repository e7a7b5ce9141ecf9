"""What a verb needs of a run: that it answers, or has something to export; and the way out where it does not. Light."""

from streamrl.errors import RunFolderError
from streamrl.services.run.folder import RunFolder


def require_up(run: RunFolder) -> None:
    """Raises RunFolderError, with the way out, for a run that cannot answer now."""
    if run.owner() is not None:
        return
    if run.summary() is not None:
        raise RunFolderError(
            f"run {run.name} is finished, so nothing answers; its model is in {run.export_path}: score that by "
            f"`lm_eval --model hf --model_args pretrained={run.export_path}`, or serve it as model.path of another run"
        )
    raise RunFolderError(f"run {run.name} is not up; `streamrl up {run.config_path}` starts or resumes it")


def require_checkpoint(run: RunFolder) -> None:
    """Raises RunFolderError where there is none, without reading any."""
    if not any(path.is_dir() for path in run.checkpoints_path.glob("step_*")):
        raise nothing_yet(run)


def nothing_yet(run: RunFolder) -> RunFolderError:
    """For a run that has no checkpoint which could be read."""
    return RunFolderError(
        f"run {run.name} has no checkpoint to export yet; the first comes after the warm-up, "
        "then one every checkpoint.every steps"
    )
