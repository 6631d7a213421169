"""Tries each client against one server, one after the other."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.processes import Unavailable, process, tail
from ops.bench.size import Size
from ops.clients.install import NPM_BIN, PYTHON, install
from ops.clients.server import served
from ops.clients.tried import CLIENTS, HERE, Client
from tests.stack import free_port

_LIMIT_S = 180.0


@dataclass(frozen=True)
class Outcome:
    client: Client
    failure: str  # empty: success
    seconds: float


def tried(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """The benchmark's figure: how many clients failed. Raises: Unavailable."""
    size.leaves("clients, which `make clients` tries")
    outcomes = try_all(CLIENTS, out_dir, say)
    failures = [outcome for outcome in outcomes if outcome.failure]
    reasons = [f"{outcome.client.package}: {outcome.failure}" for outcome in failures]
    return {"clients_failed": len(failures), "clients": len(outcomes), "client_failures": reasons}


def try_all(clients: Sequence[Client], out_dir: Path, say: Say) -> list[Outcome]:
    """Writes the clients' output to `out_dir`. Raises: Unavailable when there is no server."""
    out_dir.mkdir(parents=True, exist_ok=True)
    missing: dict[bool, str] = {}
    for npm in sorted({client.npm for client in clients} | {False}):  # the clients' Python runs the others too
        say("npm: installing clients" if npm else "PyPI: installing clients")
        try:
            install(npm)
        except Unavailable as exc:
            missing[npm] = str(exc)
    outcomes = []
    grpc_port = free_port()
    with served(out_dir / "server", grpc_port=grpc_port) as system:
        for client in clients:
            say(client.package)
            began = time.monotonic()
            failure = missing.get(False) or missing.get(client.npm) or _try(client, system.url, grpc_port, out_dir)
            outcomes.append(Outcome(client, failure, time.monotonic() - began))
    return outcomes


def _try(client: Client, url: str, grpc_port: int, out_dir: Path) -> str:
    """The reason of its failure, or ''."""
    home, log = out_dir / client.script, out_dir / f"{client.script}.log"
    home.mkdir()
    own = [f"{name}={value}" for name, value in _environment(url, grpc_port, home).items()]
    script = str(HERE / f"with_{client.script}.py")
    command = ["env", "-i", "-C", str(home), *own, str(PYTHON), "-P", script]
    with process(command, log) as child:  # and all that it starts
        try:
            code = child.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"over {_LIMIT_S:.0f} s; {tail(log)}"
    return tail(log) if code else ""


def _environment(url: str, grpc_port: int, home: Path) -> dict[str, str]:
    """An environment without the user's keys and settings."""
    return {
        "PATH": f"{NPM_BIN}:{os.environ['PATH']}",
        "HOME": str(home),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "KSERVE_HTTP": url.removeprefix("http://"),
        "KSERVE_GRPC": f"127.0.0.1:{grpc_port}",
        # For Claude Code, which would else ask for Anthropic's models, at Anthropic.
        "ANTHROPIC_MODEL": "mock",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "mock",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
