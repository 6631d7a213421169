"""HTTP_PROXY is for what goes out to the internet: no check of our own, and no call to a named address, follows it."""

import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import yaml

from app.webhooks.webhook import tell
from tests.stack import ROOT, free_port


class _Ok(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 (the server looks for this name)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server, beside a proxy that does not answer."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), _Ok) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port
        running.shutdown()


def test_the_images_check_asks_the_port_that_is_set(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = re.findall(r"^HEALTHCHECK .* CMD (\[.+\])$", (ROOT / "docker/api.Dockerfile").read_text(), re.MULTILINE)
    _python, *rest = yaml.safe_load(line)
    monkeypatch.setenv("XYLEM_PORT", str(server))
    assert subprocess.run([sys.executable, *rest], capture_output=True, check=False).returncode == 0
    monkeypatch.setenv("XYLEM_PORT", str(free_port()))
    assert subprocess.run([sys.executable, *rest], capture_output=True, check=False).returncode != 0


def test_flowers_check_asks_flower(server: int) -> None:
    service = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]["flower"]
    _cmd, _python, *rest = service["healthcheck"]["test"]
    command = [sys.executable, *(part.replace("5555", str(server)) for part in rest)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, shlex.join(command) + result.stderr


async def test_a_webhook_goes_to_the_address_that_is_set(server: int) -> None:
    assert await tell(f"http://127.0.0.1:{server}/hook", None, "batch.completed", "batch_1") == ""
