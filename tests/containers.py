"""The services of docker/compose.yaml as containers of runc, from the images of `make images`: no daemon.

They share one network that nothing else is in, so they have the ports and addresses that the file names; a test asks
them from inside it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.container_spec import Image, Service, bound, grace_s, specified, volume
from tests.stack import ROOT, wait_until

STORE = ROOT / ".xylem" / "images"
_BUILDAH = ["buildah", "--root", str(STORE / "storage"), "--runroot", str(STORE / "run")]


def output(*command: str, **how: Any) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, **how)
    assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@cache
def built() -> frozenset[str]:
    """Names of the images that were built, such as `api`."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "runc", "ip"))) or not STORE.exists():
        return frozenset()
    lines = output(*_BUILDAH, "images", "--noheading", "--format", "{{.Name}}").split()
    return frozenset(line.removeprefix("localhost/xylem-") for line in lines)


def needs(*images: str) -> list[pytest.MarkDecorator]:
    missing = set(images) - built()
    return [
        pytest.mark.images,
        pytest.mark.skipif(
            bool(missing), reason=f"not built: {', '.join(sorted(missing))}; `make images` builds, as root"
        ),
    ]


def mounted(name: str, until: ExitStack) -> Image:
    """The image, whose file system stays mounted `until`."""
    container = output(*_BUILDAH, "from", "--pull-never", f"localhost/xylem-{name}").strip()
    until.callback(output, *_BUILDAH, "rm", container)
    metadata = json.loads(output(*_BUILDAH, "inspect", "--type", "image", f"localhost/xylem-{name}"))
    return Image(metadata["Docker"]["config"], Path(output(*_BUILDAH, "mount", container).strip()))


@dataclass
class Containers:
    """The running containers of `services`, a process of runc each. `directory` gets logs and volumes."""

    directory: Path
    services: dict[str, Service]
    until: ExitStack
    images: dict[str, Image] = field(default_factory=dict)
    procs: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        command = ["unshare", "--net", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"]
        holder = self.until.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        self.until.callback(holder.kill)
        assert holder.stdout
        holder.stdout.readline()
        self.volumes = self.directory / "volumes"
        self.network = Path(f"/proc/{holder.pid}/ns/net")
        (self.directory / "hosts").write_text(f"127.0.0.1 localhost {' '.join(self.services)}\n")

    def image(self, name: str) -> Image:
        if name not in self.images:
            self.images[name] = mounted(name, self.until)
        return self.images[name]

    def start(self, name: str) -> None:
        """Starts a service after those it depends on, in the states that it wants them in."""
        service = self.services[name]
        for other, how in service.get("depends_on", {}).items():
            if other not in self.procs:
                self.start(other)
            if how["condition"] == "service_completed_successfully":
                assert self.procs[other].wait(900) == 0, self.log(other)
            else:
                wait_until(lambda other=other: self.healthy(other), f"{other} is healthy", 300, every_s=1)
        bundle = self.directory / name
        bundle.mkdir()
        output("runc", "spec", "--bundle", str(bundle))
        image = self.image(service_image(service))
        mounts = [volume(line, image, self.volumes) for line in service.get("volumes", [])]
        mounts.append(bound(self.directory / "hosts", "/etc/hosts", "ro"))
        default = json.loads((bundle / "config.json").read_text())
        spec = specified(default, service, image, self.network, mounts)
        (bundle / "config.json").write_text(json.dumps(spec | {"hostname": name}))
        with (bundle / "log").open("wb") as log:
            self.procs[name] = subprocess.Popen(
                [*self._runc, "run", "--bundle", str(bundle), self._id(name)], stdout=log, stderr=log
            )
        self.until.callback(self._remove, name)

    @property
    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self.directory / "runc")]

    def _id(self, name: str) -> str:
        return f"xylem-{os.getpid()}-{name}"

    def _remove(self, name: str) -> None:
        subprocess.run([*self._runc, "delete", "--force", self._id(name)], check=False, capture_output=True)
        self.procs[name].wait(30)

    def log(self, name: str) -> str:
        return (self.directory / name / "log").read_text()

    def inside(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Another process in a container, as `docker exec` starts it."""
        assert self.procs[name].poll() is None, self.log(name)
        return subprocess.run(
            [*self._runc, "exec", self._id(name), *command], check=False, capture_output=True, text=True, timeout=120
        )

    def healthy(self, name: str) -> bool:
        """Whether Docker would call it healthy, by the health check of the service or of its image."""
        test = self.services[name].get("healthcheck", {}).get("test")
        test = test or self.image(service_image(self.services[name])).config["Healthcheck"]["Test"]
        return self.inside(name, *test[1:]).returncode == 0

    def stop(self, name: str) -> int:
        """The exit status after a stop as by `docker stop`. Raises: TimeoutExpired, after its grace period."""
        output(*self._runc, "kill", self._id(name), str(int(signal.SIGTERM)))
        return self.procs[name].wait(grace_s(self.services[name]))

    def asked(self, script: str) -> str:
        """The output of a Python script of this environment that can reach the containers."""
        return output("nsenter", f"--net={self.network}", sys.executable, "-c", script, cwd=ROOT)


def service_image(service: Service) -> str:
    name: str = Path(service["build"]["dockerfile"]).name.partition(".")[0]
    return name
