"""The services of docker/compose.yaml as containers of runc, from the images of `make images`: no daemon.

They share one network that nothing else is in, so they have the ports and addresses that the file names; a test asks
them from inside it. Where the file says nothing, what Docker does.
"""

import json
import os
import re
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
import yaml

from tests.stack import ROOT, wait_until

COMPOSE = ROOT / "docker" / "compose.yaml"
STORE = ROOT / ".xylem" / "images"
_BUILDAH = ["buildah", "--root", str(STORE / "storage"), "--runroot", str(STORE / "run")]
_TMPFS = ["noexec", "nosuid", "nodev"]  # Docker's, unless the file says `exec`

Service = dict[str, Any]


def output(*command: str, **how: Any) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, **how)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@cache
def built() -> frozenset[str]:
    """Names of the images that were built, such as `api`."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "runc", "nsenter"))) or not STORE.exists():
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


@dataclass(frozen=True)
class Image:
    """`root`: where its file system is mounted."""

    config: dict[str, Any]
    root: Path

    @classmethod
    def mounted(cls, name: str, until: ExitStack) -> "Image":
        container = output(*_BUILDAH, "from", "--pull-never", f"localhost/xylem-{name}").strip()
        until.callback(output, *_BUILDAH, "rm", container)
        config = json.loads(output(*_BUILDAH, "inspect", "--type", "image", f"localhost/xylem-{name}"))["Docker"][
            "config"
        ]
        return cls(config, Path(output(*_BUILDAH, "mount", container).strip()))

    def user(self) -> tuple[int, int, str]:
        """Its number, its group's, its home folder."""
        uid = self.config["User"] or "0"
        lines = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        (entry,) = (line for line in lines if line[2] == uid)
        return int(uid), int(entry[3]), entry[5]


def services(variables: dict[str, str]) -> dict[str, Service]:
    """Of compose.yaml, with its `${…}` from `variables`."""

    def value(match: re.Match[str]) -> str:
        name, _, default = match[1].partition(":-")
        return variables.get(name.partition(":?")[0], default)

    found: dict[str, Service] = yaml.safe_load(re.sub(r"\$\{([^}]*)\}", value, COMPOSE.read_text()))["services"]
    return found


def seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


@dataclass
class Containers:
    """What of compose.yaml runs. `directory` gets logs and volumes, `names` are names of services by their image's."""

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
        self.network = Path(f"/proc/{holder.pid}/ns/net")
        (self.directory / "hosts").write_text(f"127.0.0.1 localhost {' '.join(self.services)}\n")

    def image(self, name: str) -> Image:
        if name not in self.images:
            self.images[name] = Image.mounted(name, self.until)
        return self.images[name]

    def start(self, name: str) -> None:
        """After those it depends on, in the states that it wants them in."""
        service = self.services[name]
        for other, how in service.get("depends_on", {}).items():
            if other not in self.procs:
                self.start(other)
            if how["condition"] == "service_completed_successfully":
                assert self.procs[other].wait(300) == 0, self.log(other)
            else:
                wait_until(lambda other=other: self.healthy(other), f"{other} is healthy", 120, every_s=1)
        bundle = self.directory / name
        bundle.mkdir()
        output("runc", "spec", "--bundle", str(bundle))
        spec = json.loads((bundle / "config.json").read_text())
        (bundle / "config.json").write_text(json.dumps(self._spec(spec, name, service)))
        with (bundle / "log").open("wb") as log:
            self.procs[name] = subprocess.Popen(
                [*self._runc, "run", "--bundle", str(bundle), self._id(name)], stdout=log, stderr=log
            )
        self.until.callback(self._remove, name)

    def _spec(self, spec: dict[str, Any], name: str, service: Service) -> dict[str, Any]:
        image = self.image(service_image(service))
        uid, gid, home = image.user()
        entrypoint = service.get("entrypoint", image.config["Entrypoint"] or [])
        command = service.get("command", image.config["Cmd"])
        environment = [f"{key}={value}" for key, value in service.get("environment", {}).items()]
        capabilities = (
            [f"CAP_{one}" for one in service.get("cap_add", [])] if service.get("cap_drop") == ["ALL"] else None
        )
        process = spec["process"]
        process |= {
            "terminal": False,
            "args": [*entrypoint, *command],
            "env": [*image.config["Env"], f"HOME={home}", *environment],
            "cwd": service.get("working_dir") or image.config["WorkingDir"] or "/",
            "user": {"uid": uid, "gid": gid},
            "noNewPrivileges": "no-new-privileges:true" in service.get("security_opt", []),
            "rlimits": [],
        }
        if capabilities is not None:
            process["capabilities"] = dict.fromkeys(process["capabilities"], capabilities)
        spec |= {"root": {"path": str(image.root), "readonly": service.get("read_only", False)}, "hostname": name}
        for mount in spec["mounts"]:
            if mount["destination"] == "/dev/shm":
                mount["options"] = [*mount["options"][:-1], f"size={service.get('shm_size', '64mb')[:-1]}"]
        spec["mounts"] += [
            *(_memory(line) for line in service.get("tmpfs", [])),
            *(self._volume(line, image) for line in service.get("volumes", [])),
            _bind(self.directory / "hosts", "/etc/hosts", "ro"),
        ]
        for namespace in spec["linux"]["namespaces"]:
            if namespace["type"] == "network":
                namespace["path"] = str(self.network)
        return spec

    def _volume(self, line: str, image: Image) -> dict[str, Any]:
        """A new one belongs to whom the image's folder does, as Docker does it."""
        source, place, *mode = line.split(":")
        if source.startswith("."):
            return _bind(COMPOSE.parent / source, place, *mode)
        path, inside = self.directory / "volumes" / source, image.root / place.removeprefix("/")
        if not path.exists():
            path.mkdir(parents=True)
            owner = inside.stat() if inside.exists() else None
            os.chown(path, *((owner.st_uid, owner.st_gid) if owner else image.user()[:2]))
        return _bind(path, place, *mode)

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
        """What Docker would say by the health check of the service or of its image."""
        test = self.services[name].get("healthcheck", {}).get("test")
        test = test or self.image(service_image(self.services[name])).config["Healthcheck"]["Test"]
        return self.inside(name, *test[1:]).returncode == 0

    def stop(self, name: str) -> int:
        """As `docker stop`. Returns its exit status. Raises: TimeoutExpired, after its grace period."""
        output(*self._runc, "kill", self._id(name), str(int(signal.SIGTERM)))
        return self.procs[name].wait(seconds(self.services[name].get("stop_grace_period", "10s")))

    def asked(self, script: str) -> str:
        """What a Python script of this environment prints that can reach the containers."""
        return output("nsenter", f"--net={self.network}", sys.executable, "-c", script, cwd=ROOT)


def service_image(service: Service) -> str:
    name: str = Path(service["build"]["dockerfile"]).name.partition(".")[0]
    return name


def _memory(line: str) -> dict[str, Any]:
    place, _, options = line.partition(":")
    chosen = options.split(",") if options else []
    defaults = [one for one in _TMPFS if one.removeprefix("no") not in chosen]
    options_ = [*defaults, *(one for one in chosen if one != "exec"), *([] if "mode=" in options else ["mode=1777"])]
    return {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": options_}


def _bind(source: Path, place: str, mode: str = "rw") -> dict[str, Any]:
    return {"destination": place, "type": "bind", "source": str(source), "options": ["rbind", mode]}
