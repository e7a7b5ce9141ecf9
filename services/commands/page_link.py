"""Where a run's page is, with its token behind a `#`: that part of a link is never sent to a server."""

from streamrl.errors import ComponentError, RunFolderError
from streamrl.gateway.auth import Scope
from streamrl.gateway.page.files import PAGE
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path


def page_link(run: RunFolder) -> str:
    """A link that is a secret. Raises RunFolderError when the run is not up, ComponentError while it has no gateway."""
    launch = run.record.launch
    if run.owner() is None or launch is None:
        raise RunFolderError(f"run {run.name} is not up; `streamrl up {run.config_path}` starts or resumes it")
    if not launch.gateway:
        what = "it has gateway.enabled = false, or its gateway has not come up yet"
        raise ComponentError(f"run {run.name} has no page at the moment: {what}")
    return f"{launch.gateway}{PAGE}#token={token_path(run, Scope.CONTROL).read_text()}"
