"""`make check` looks for known vulnerabilities, and never passes for having looked when it has not."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.stack import BIN, ROOT, free_port


@contextmanager
def advisories(package: str) -> Iterator[str]:
    """A database that knows of one vulnerability, in every version of `package`; speaks OSV's protocol."""
    flaw = {
        "id": "PYSEC-0000-1",
        "details": "bad",
        "affected": [
            {
                "package": {"name": package, "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999"}]}],
            }
        ],
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            package_name = json.loads(self.rfile.read(int(self.headers["content-length"])))["package"]["name"]
            body = json.dumps({"vulns": [flaw]} if package_name == package else {}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def audit(url: str) -> "subprocess.CompletedProcess[str]":
    env = {"PIP_AUDIT": str(BIN / "pip-audit"), **os.environ, "OSV_URL": url}
    return subprocess.run(
        [str(ROOT / "ops" / "audit.sh")], env=env, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_known_vulnerability_in_what_is_pinned_fails_and_is_named() -> None:
    """The version that has no vulnerability is named too."""
    with advisories("jinja2") as url:
        result = audit(url)
    assert result.returncode != 0
    assert "jinja2" in result.stdout
    assert "PYSEC-0000-1" in result.stdout
    assert "999" in result.stdout


def test_the_audit_passes_without_known_vulnerabilities() -> None:
    """All five lists were looked through."""
    with advisories("nothing-that-we-use") as url:
        result = audit(url)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("No known vulnerabilities found") == 5


def test_without_the_database_it_says_that_it_has_not_looked_and_fails_nothing() -> None:
    """A machine without the internet can check the rest."""
    result = audit(f"http://127.0.0.1:{free_port()}/")
    assert result.returncode == 0
    assert result.stdout.startswith("audit: NOT DONE")
    assert len(result.stdout.splitlines()) == 1
