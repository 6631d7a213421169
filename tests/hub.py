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
    """Repositories, each at the revisions `main` and `v1`."""

    url: str
    files: Mapping[str, bytes]  # of `org/tiny`
    others: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    breaks_after: int | None = None  # a large file's byte before which connections break
    lies_about: str = ""  # a file whose checksum is a wrong one
    asked: list[tuple[str, str, int]] = field(default_factory=list)  # method, path, first byte
    tokens: list[str | None] = field(default_factory=list)  # that came with them

    def fetched(self) -> list[tuple[str, int]]:
        """The files that were fetched, and from which byte."""
        return [
            (path.rpartition("/")[2], begin) for method, path, begin in self.asked if method == "GET" and "/res" in path
        ]


@contextmanager
def hub_server(files: Mapping[str, bytes], **others: Mapping[str, bytes]) -> Iterator[Hub]:
    """Serves `org/tiny`, of these files, and those of the other names of `org`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, ranges = self.path.partition("?")[0], self.headers.get("range", "bytes=0-").removeprefix("bytes=")
            begin, end = (int(bound) if bound else None for bound in ranges.split("-"))
            hub.asked.append((self.command, path, begin or 0))
            hub.tokens.append(self.headers.get("authorization"))
            for name, files in {"org/tiny": hub.files, **hub.others}.items():
                if path.startswith(f"/api/models/{name}/revision/"):
                    self._info(name, files, path.rpartition("/")[2])
                    return
                if path.startswith(f"/{name}/resolve/{hub.commit}/"):
                    self._file(files[path.removeprefix(f"/{name}/resolve/{hub.commit}/")], begin or 0, end)
                    return
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815 (its base class calls it so)

        def _info(self, name: str, files: Mapping[str, bytes], revision: str) -> None:
            if revision not in ("main", "v1", hub.commit):
                self._answer(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
                return
            siblings = [_sibling(file, data, lies=file == hub.lies_about) for file, data in files.items()]
            body = {"id": name, "sha": hub.commit, "siblings": siblings, "private": False, "tags": []}
            self._answer(200, json.dumps(body).encode(), {})

        def _file(self, data: bytes, begin: int, end: int | None) -> None:
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
    url = f"http://127.0.0.1:{server.server_address[1]}"
    hub = Hub(url, files, {f"org/{name}": its_files for name, its_files in others.items()})
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
