"""`streamrl page`. `main` makes a command of it."""

import json

from streamrl.services.cli.options import Json, find


def page(run: str | None = None, *, as_json: Json = False) -> int:
    """Print the link of a live run's page, with the token that it wants.

    The run needs `gateway.enabled = true`. Whoever has the link may look at the run, and scale it.

    Parameters
    ----------
    run
        A run folder, or a name under `runs/`; the newest when absent.
    """
    from streamrl.services.commands.page_link import page_link

    link = page_link(find(run))
    print(json.dumps({"link": link}) if as_json else link)
    return 0
