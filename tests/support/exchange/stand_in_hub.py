"""A local HTTP server that answers as the model hub does to who makes a repository and commits files to it."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_stand_in"


class StandInHub:
    """repos: what each repository's newest commit has, by path. owners: who the token may write as. breaks_at: a part
    of a path; requests to it are answered with 500. asked: paths, in order."""

    def __init__(self, owners: tuple[str, ...] = ("me",), breaks_at: str = "") -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.messages: list[str] = []
        self.asked: list[str] = []
        self.owners = owners
        self.breaks_at = breaks_at
        self._objects: dict[str, bytes] = {}
        self.url = ""

    def answer(self, method: str, path: str, token: str, body: bytes) -> tuple[int, Any]:
        self.asked.append(path)
        if self.breaks_at and self.breaks_at in path:
            return 500, {"error": "the stand-in is broken"}
        if method == "PUT":
            self._objects[path.rpartition("/")[2]] = body
            return 200, {}
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            files = [{"path": one["path"], **_mode(one["path"])} for one in json.loads(body)["files"]]
            return 200, {"files": files}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [self._upload(one) for one in json.loads(body)["objects"]]
            return 200, {"transfer": "basic", "objects": objects}
        if "/commit/" in path:
            return self._commit(path, body)
        return 404, {"error": "no such route of the stand-in"}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        repo = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] not in self.owners:
            what = f'You don\'t have the rights to create a model under the namespace "{asked["organization"]}"'
            return 403, {"error": what}
        answer = {"url": f"{self.url}/{repo}"}
        if repo in self.repos:
            return 409, {"error": "You already created this model repo", **answer}
        self.repos[repo] = {}
        self.private[repo] = asked.get("visibility") == "private"
        return 200, answer

    def _upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {**asked, "actions": {"upload": {"href": f"{self.url}/objects/{asked['oid']}"}}}

    def _commit(self, path: str, body: bytes) -> tuple[int, Any]:
        repo = path.removeprefix("/api/models/").partition("/commit/")[0]
        for line in map(json.loads, body.splitlines()):
            told = line["value"]
            if line["key"] == "header":
                self.messages.append(told["summary"])
            elif line["key"] == "file":
                self.repos[repo][told["path"]] = base64.b64decode(told["content"])
            elif line["key"] == "lfsFile":
                self.repos[repo][told["path"]] = self._objects[told["oid"]]
        oid = hashlib.sha1(body).hexdigest()
        return 200, {"commitOid": oid, "commitUrl": f"{self.url}/{repo}/commit/{oid}", "hookOutput": ""}


def _mode(path: str) -> dict[str, Any]:
    large = path.endswith((".safetensors", ".png"))
    return {"uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": None}


@contextmanager
def serving(hub: StandInHub) -> Iterator[StandInHub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("transfer-encoding", "") == "chunked":
                body = b"".join(self._chunks())
            status, told = hub.answer(self.command, self.path, self.headers.get("authorization", ""), body)
            content = json.dumps(told).encode()
            self.send_response(status)
            if "error" in told:
                self.send_header("X-Error-Message", told["error"])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_GET = _serve

        def _chunks(self) -> Iterator[bytes]:
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
