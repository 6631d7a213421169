"""Real proxies in front of an API, with the files of the guide."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.stack import BIN, ROOT, connects, free_port, stop, wait_until

GUIDE = ROOT / "docs/guide/proxies.md"
# By name: its file in the guide, and its command, which stays in the foreground.
_PROXIES = {
    "nginx": ("nginx.conf", ["nginx", "-e", "stderr", "-g", "daemon off; pid {folder}/pid; error_log stderr;", "-c"]),
    "haproxy": ("haproxy.cfg", ["haproxy", "-db", "-f"]),
    "envoy": ("envoy.yaml", [str(BIN / "envoy"), "--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"]),
}
NAMES = sorted(_PROXIES)


@contextmanager
def proxy(name: str, folder: Path, api_port: int, port: int | None = None) -> Iterator[str]:
    """Runs it before an API, at a free port or this one; yields its address. Raises: AssertionError: not installed."""
    file, argv = _PROXIES[name]
    binary = shutil.which(argv[0]) or shutil.which(argv[0], path="/usr/sbin")
    assert binary, f"{name} is not installed: ops/test-servers.sh installs it where it may"
    port, config = port or free_port(), folder / file
    text = _of_guide(file).replace("8000", str(api_port)).replace("8080", str(port))
    config.write_text(text.replace("events {}", "events {}\nuser root;\n") if os.getuid() == 0 else text)
    command = [binary, *(part.format(folder=folder) for part in argv[1:]), str(config)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: connects(port) or process.poll() is not None, f"{name} listens")
        assert process.poll() is None, (folder / f"{name}.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


def _of_guide(file: str) -> str:
    match = re.search(rf"```\w+\n# {re.escape(file)}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert match, file
    return match[1]
