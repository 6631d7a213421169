"""A server in the shape of Hugging Face's hub, on loopback."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

_LFS = 1024  # bytes: larger files have a SHA-256, others git's SHA-1


@dataclass
class Hub:
    """One model, `org/tiny`, at the revisions `main` and `v1`."""

    url: str
    files: Mapping[str, bytes]
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    breaks_after: int | None = None  # a large file's byte before which connections break
    lies_about: str = ""  # a file whose checksum is a wrong one
    asked: list[tuple[str, str, int]] = field(default_factory=list)  # method, path, first byte

    def fetched(self) -> list[tuple[str, int]]:
        """The files that were fetched, and from which byte."""
        return [
            (path.rpartition("/")[2], begin) for method, path, begin in self.asked if method == "GET" and "/res" in path
        ]


@contextmanager
def hub_server(files: Mapping[str, bytes]) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, ranges = self.path.partition("?")[0], self.headers.get("range", "bytes=0-").removeprefix("bytes=")
            begin, end = (int(bound) if bound else None for bound in ranges.split("-"))
            hub.asked.append((self.command, path, begin or 0))
            if path.startswith("/api/models/org/tiny/revision/"):
                self._info(path.rpartition("/")[2])
            elif path.startswith(f"/org/tiny/resolve/{hub.commit}/"):
                self._file(path.removeprefix(f"/org/tiny/resolve/{hub.commit}/"), begin or 0, end)
            else:
                self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815 (its base class calls it so)

        def _info(self, revision: str) -> None:
            if revision not in ("main", "v1", hub.commit):
                self._answer(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
                return
            siblings = [_sibling(name, data, lies=name == hub.lies_about) for name, data in hub.files.items()]
            body = {"id": "org/tiny", "sha": hub.commit, "siblings": siblings, "private": False, "tags": []}
            self._answer(200, json.dumps(body).encode(), {})

        def _file(self, name: str, begin: int, end: int | None) -> None:
            data = hub.files[name]
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": hub.commit}
            body = data[begin : None if end is None else end + 1]
            headers["Content-Range"] = f"bytes {begin}-{begin + len(body) - 1}/{len(data)}"
            breaks = len(data) > _LFS and hub.breaks_after is not None and begin + len(body) > hub.breaks_after
            self._answer(206, body, headers, sent=max(0, (hub.breaks_after or 0) - begin) if breaks else None)

        def _answer(self, status: int, body: bytes, headers: dict[str, str], *, sent: int | None = None) -> None:
            """`sent`: only so many bytes of the body, and then the connection ends."""
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:sent])
            self.close_connection |= sent is not None

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}", files)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


def _sibling(name: str, data: bytes, *, lies: bool) -> dict[str, Any]:
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    sha = "0" * 64 if lies else hashlib.sha256(data).hexdigest()
    large = {"lfs": {"sha256": sha, "size": len(data), "pointerSize": 130}} if len(data) > _LFS else {}
    return {"rfilename": name, "size": len(data), "blobId": "0" * 40 if lies else git, **large}
