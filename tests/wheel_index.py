"""Two package indexes on loopback, in pip's simple format: the usual one, and PyTorch's, which uv asks by HTTPS."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from zipfile import ZipFile

from tests.certificates import certify

PYTORCH = "download.pytorch.org"


@dataclass
class Indexes:
    """Each is a folder of wheels."""

    usual: Path
    pytorch: Path
    environment: dict[str, str]  # of pip, which asks the usual one, and of uv, whose way to PyTorch's is this server
    asked: list[str] = field(default_factory=list)  # the host, empty for the usual index, and the path


def write_wheel(folder: Path, name: str, version: str, *, summary: str = "empty") -> None:
    """An empty package."""
    with ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        info, distribution = f"{name}-{version}.dist-info", name.replace("_", "-")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nSummary: {summary}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@contextmanager
def wheel_indexes(directory: Path) -> Iterator[Indexes]:
    """Serves both; is PyTorch's host to clients that use it as their proxy and trust its authority."""
    authority = certify(directory, f"DNS:{PYTORCH}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "store.pem", directory / "store.key")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        host = ""

        def do_CONNECT(self) -> None:
            self.host = self.path.partition(":")[0]
            self.send_response(200)
            self.end_headers()
            self.request = tls.wrap_socket(self.request, server_side=True)
            self.setup()
            self.close_connection = False

        def finish(self) -> None:
            super().finish()
            self.request.close()  # the server closes only what it accepted

        def do_GET(self) -> None:
            indexes.asked.append(self.host + self.path)
            folder = indexes.pytorch if self.host == PYTORCH else indexes.usual
            *_, project, file = self.path.split("/")
            if file:
                self._answer(folder / file.replace("%2B", "+"))
            else:
                wheels = sorted(folder.glob(f"{project.replace('-', '_')}-*.whl"))
                links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>\n' for wheel in wheels)
                self._send(200 if wheels else 404, links.encode(), "text/html")

        do_HEAD = do_GET  # noqa: N815 (its base class calls it so)

        def _answer(self, wheel: Path) -> None:
            if wheel.is_file():
                self._send(200, wheel.read_bytes(), "application/octet-stream")
            else:
                self._send(404, b"", "text/plain")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        environment = {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": f"{url}/simple/",
            "UV_NO_CONFIG": "1",
            "HTTPS_PROXY": url,
            "SSL_CERT_FILE": str(authority),
        }
        indexes = Indexes(directory / "usual", directory / "pytorch", environment)
        indexes.usual.mkdir()
        indexes.pytorch.mkdir()
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield indexes
        finally:
            server.shutdown()
