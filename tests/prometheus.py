"""The distribution's Prometheus, which scrapes a fleet of the tests as ops/observability says."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from app.cli.probes import http_ok
from tests.stack import ROOT, Stack, free_port, stop, wait_until

CONFIG = ROOT / "ops/observability/prometheus"


def program(name: str) -> str:
    """Raises: AssertionError when it isn't installed."""
    path = shutil.which(name)
    assert path, f"{name} is not installed: `make test` installs it where it may, else install Prometheus"
    return path


def promtool(*arguments: str) -> str:
    """The output of promtool. Fails with it if promtool finds anything wrong."""
    result = subprocess.run([program("promtool"), *arguments], cwd=CONFIG, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@contextmanager
def prometheus(s: Stack, directory: Path) -> Iterator[httpx.Client]:
    """A client of a Prometheus that asks each second; all else is as in the file that users have."""
    config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    api, workers = config["scrape_configs"]
    api["static_configs"] = [{"targets": [s.url.removeprefix("http://")]}]
    (discovery,) = workers["http_sd_configs"]
    discovery |= {"url": discovery["url"].replace("http://127.0.0.1:8000", s.url), "refresh_interval": "1s"}
    shutil.copy(CONFIG / "rules.yml", directory)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program("prometheus"), f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data", f"--web.listen-address={address}",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: http_ok(f"http://{address}/-/ready"), "Prometheus is ready")
        with httpx.Client(base_url=f"http://{address}", timeout=30) as client:
            yield client
    finally:
        stop(process)
