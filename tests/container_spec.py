"""Settings of runc for a service of docker/compose.yaml: what it says, what its image says, else Docker's defaults."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.stack import ROOT

COMPOSE = ROOT / "docker" / "compose.yaml"

Service = dict[str, Any]
Mount = dict[str, Any]


@dataclass(frozen=True)
class Image:
    """`config` is in Docker's format; at `root` its file system is mounted."""

    config: dict[str, Any]
    root: Path

    def user(self) -> tuple[int, int, str]:
        """Its number, its group's, its home folder."""
        uid = self.config["User"] or "0"
        lines = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        (entry,) = (line for line in lines if line[2] == uid)
        return int(uid), int(entry[3]), entry[5]


def services(variables: dict[str, str]) -> dict[str, Service]:
    """The services of compose.yaml, with its `${…}` from `variables`."""

    def value(match: re.Match[str]) -> str:
        name, _, default = match[1].partition(":-")
        return variables.get(name.partition(":?")[0], default)

    specs: dict[str, Service] = yaml.safe_load(re.sub(r"\$\{([^}]*)\}", value, COMPOSE.read_text()))["services"]
    return specs


def grace_s(service: Service) -> int:
    """Seconds from SIGTERM to SIGKILL."""
    duration = service.get("stop_grace_period", "10s")
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


def specified(
    default: dict[str, Any], service: Service, image: Image, network: Path, mounts: list[Mount]
) -> dict[str, Any]:
    """A config.json, of the one that `runc spec` writes."""
    uid, gid, home = image.user()
    process = default["process"] | {
        "terminal": False,
        "args": [
            *service.get("entrypoint", image.config["Entrypoint"] or []),
            *service.get("command", image.config["Cmd"] or []),
        ],
        "env": [
            *image.config["Env"],
            f"HOME={home}",
            *(f"{name}={value}" for name, value in service.get("environment", {}).items()),
        ],
        "cwd": service.get("working_dir") or image.config["WorkingDir"] or "/",
        "user": {"uid": uid, "gid": gid},
        "noNewPrivileges": "no-new-privileges:true" in service.get("security_opt", []),
        "rlimits": [],
    }
    if service.get("cap_drop") == ["ALL"]:
        capabilities = [f"CAP_{name}" for name in service.get("cap_add", [])]
        process["capabilities"] = dict.fromkeys(process["capabilities"], capabilities)
    shm = {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}
    shm["options"] = ["noexec", "nosuid", "nodev", "mode=1777", f"size={service.get('shm_size', '64mb')[:-1]}"]
    default_mounts = [mount for mount in default["mounts"] if mount["destination"] != "/dev/shm"]
    namespaces = [one for one in default["linux"]["namespaces"] if one["type"] != "network"]
    return default | {
        "process": process,
        "root": {"path": str(image.root), "readonly": service.get("read_only", False)},
        "mounts": [*default_mounts, shm, *(_memory(line) for line in service.get("tmpfs", [])), *mounts],
        "linux": default["linux"] | {"namespaces": [*namespaces, {"type": "network", "path": str(network)}]},
    }


def _memory(line: str) -> Mount:
    """The mount of `tmpfs: [PLACE:OPTION,…]`."""
    place, _, options = line.partition(":")
    explicit_flags = options.split(",") if options else []
    default_flags = [f"no{what}" for what in ("exec", "suid", "dev") if what not in explicit_flags]
    mode = [] if "mode=" in options else ["mode=1777"]
    return {
        "destination": place,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": [*default_flags, *explicit_flags, *mode],
    }


def volume(line: str, image: Image, volumes: Path) -> Mount:
    """The mount of `volumes: [SOURCE:PLACE:MODE]`. A new one, below `volumes`, has the owner of the image's folder."""
    source, place, *mode = line.split(":")
    if source.startswith("."):
        return bound(COMPOSE.parent / source, place, *mode)
    path, inside = volumes / source, image.root / place.removeprefix("/")
    if not path.exists():
        path.mkdir(parents=True)
        if inside.exists():
            shutil.chown(path, inside.stat().st_uid, inside.stat().st_gid)
    return bound(path, place, *mode)


def bound(source: Path, place: str, mode: str = "rw") -> Mount:
    return {"destination": place, "type": "bind", "source": str(source), "options": ["rbind", mode]}
