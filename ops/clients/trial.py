"""Tries each client against one server, one after the other."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.processes import Unavailable, process, tail
from ops.bench.size import Size
from ops.clients.install import HOME, NPM, NPM_BIN, PYTHON, install
from ops.clients.server import served
from ops.clients.tried import CLIENTS, EXAMPLES, Client, Place
from tests.stack import free_port

_LIMIT_S = 180.0


@dataclass(frozen=True)
class Outcome:
    client: Client
    failure: str  # empty: success
    seconds: float


def tried(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """The benchmark's figures: how many clients and examples failed. Raises: Unavailable."""
    size.leaves("clients, which `make clients` tries")
    return figures(try_all([*CLIENTS, *EXAMPLES], out_dir, say))


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    failures = [outcome for outcome in outcomes if outcome.failure]
    return {
        "clients": len(outcomes),
        "clients_failed": len(failures),
        "examples_failing": sum(outcome.client in EXAMPLES for outcome in failures),
        "client_failures": [f"{outcome.client.package}: {outcome.failure}" for outcome in failures],
    }


def try_all(clients: Sequence[Client], out_dir: Path, say: Say) -> list[Outcome]:
    """Writes the clients' output to `out_dir`. Raises: Unavailable when there is no server."""
    out_dir.mkdir(parents=True, exist_ok=True)
    missing: dict[Place, str] = {}
    places: set[Place] = {client.place for client in clients}
    for place in sorted(places | ({"clients"} if "npm" in places else set())):  # Python runs npm's scripts, too
        say(f"installing {place}")
        try:
            install(place)
        except Unavailable as exc:
            missing[place] = str(exc)
            if place == "clients":
                missing.setdefault("npm", str(exc))
    outcomes = []
    grpc_port = free_port()
    with served(out_dir / "server", grpc_port=grpc_port) as system:
        for client in clients:
            say(client.package)
            began = time.monotonic()
            failure = missing.get(client.place) or _try(client, system.url, grpc_port, out_dir)
            outcomes.append(Outcome(client, failure, time.monotonic() - began))
    return outcomes


def _try(client: Client, url: str, grpc_port: int, out_dir: Path) -> str:
    """The reason of its failure, or ''."""
    home, log = out_dir / client.script, out_dir / f"{client.script}.log"
    home.mkdir()
    own = [f"{name}={value}" for name, value in _environment(url, grpc_port, home).items()]
    command = ["env", "-i", "-C", str(home), *own, *_run(client)]
    with process(command, log) as child:  # and all that it starts
        try:
            code = child.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"over {_LIMIT_S:.0f} s; {tail(log)}"
    return tail(log) if code else ""


def _run(client: Client) -> list[str]:
    python, script = str(PYTHON[client.place]), client.path
    if script.suffix == ".mjs":  # imports what is installed beside it
        return ["node", str(shutil.copy(script, NPM))]
    if script.suffix == ".ipynb":
        return [str(Path(python).with_name("jupyter-execute")), str(shutil.copy(script, HOME / client.place))]
    return [python, "-P", str(script)]


def _environment(url: str, grpc_port: int, home: Path) -> dict[str, str]:
    """An environment without the user's keys and settings."""
    return {
        "PATH": f"{NPM_BIN}:{os.environ['PATH']}",
        "HOME": str(home),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "MODEL": "mock",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "KSERVE_HTTP": url.removeprefix("http://"),
        "KSERVE_GRPC": f"127.0.0.1:{grpc_port}",
        # For Claude Code, which would else ask for Anthropic's models, at Anthropic.
        "ANTHROPIC_MODEL": "mock",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "mock",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
