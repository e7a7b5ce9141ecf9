"""The files of the page that the gateway shows: each is a route of its own, so nothing else can be asked for.

They say nothing of a run, and so anybody may have them. What they may do is in `PAGE_HEADERS`: load and ask of the
gateway alone, and run no script but these.
"""

from pathlib import Path

PAGE = "/"
_FOLDER = Path(__file__).with_name("static")
_INDEX = "index.html"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_SCRIPTS = (
    "alerts",
    "behind",
    "charts/band",
    "charts/bins",
    "charts/canvas",
    "charts/chart",
    "charts/figures",
    "charts/lines",
    "charts/nearest",
    "charts/plot",
    "charts/series",
    "charts/strip",
    "compare",
    "connection",
    "form",
    "format",
    "main",
    "now",
    "queue",
    "rollouts/overlays",
    "rollouts/profile",
    "rollouts/rollout",
    "rollouts/table",
    "rollouts/tokens",
    "scale",
    "session",
    "sse",
)

PAGE_FILES: dict[str, str] = {f"/page/{name}": name for name in ("page.css", *(f"{name}.js" for name in _SCRIPTS))}
"""Path in the folder, by route."""

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_file(route: str) -> tuple[bytes, str]:
    """(content, media type) of a route of the page."""
    path = _FOLDER / (_INDEX if route == PAGE else PAGE_FILES[route])
    return path.read_bytes(), f"{_TYPES[path.suffix]}; charset=utf-8"
