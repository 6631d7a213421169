"""NVIDIA Dynamo on this machine: its frontend and its mock workers, without a GPU, etcd or NATS."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ops.bench.load import System
from ops.bench.processes import Unavailable, finished, process, wait_until
from ops.bench.size import Size
from tests.stack import free_port

_VERSION = "1.6.1"
# What its frontend, router and mock workers import. It also names a package that the index lacks, for its planner.
_PACKAGES = (
    "aiohttp>=3.14.3,<4", "certifi", "httptools", "kubernetes>=32.0.1,<33", "msgspec>=0.19", "openai",
    "prometheus-client>=0.23.1,<1", "pydantic>=2.10.6,<=2.13.5", "pyzmq>=26", "redis>=6.2,<9", "tqdm",
    "transformers>=4.56", "typing-extensions", "uvloop>=0.21", "zstandard>=0.23,<1",
)  # fmt: skip
_INSTALL_S, _START_S, _NETWORK_S = 900.0, 60.0, 10.0
_SUBSCRIBES_S = 1.0  # in which its router subscribes to the last worker's KV events: nothing tells when it has
_NETWORK = "ip link set lo up && echo ready && exec sleep 86400"
_MODEL = "mock"
_PROBE = """
import json, sys, urllib.request
def get(path): return json.load(urllib.request.urlopen(sys.argv[1] + path, timeout=2))
print(sum(one["endpoint"] == "generate" for one in get("/health")["instances"]) if get("/v1/models")["data"] else 0)
"""


@contextmanager
def dynamo(
    run_dir: Path,
    model_dir: Path,
    speedup: int,
    size: Size,
    *,
    workers: int = 2,
    blocks: int = 16_384,
    block_size: int = 64,
    mode: str = "kv",
) -> Iterator[System]:
    """Its frontend with a routing `mode`, and `workers` with so many KV `blocks` of `block_size` tokens.

    `speedup` divides the time that its workers take for computing. Raises: Unavailable.
    """
    size.needs("NVIDIA Dynamo")
    run_dir.mkdir(parents=True)
    python = _python(run_dir, size)
    url = f"http://127.0.0.1:{(port := free_port())}"
    env = {
        "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(run_dir / "discovery"), "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq", "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1", "HF_HUB_OFFLINE": "1",
        "DYN_LOG": "error",  # its own default writes several lines a request
    }  # fmt: skip
    (run_dir / "discovery").mkdir()
    frontend_args = ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), "--router-mode", mode]
    worker_args = [
        "dynamo.mocker", "--model-path", str(model_dir), "--model-name", _MODEL, "--disaggregation-mode", "agg",
        "--speedup-ratio", str(speedup), "--block-size", str(block_size), "--num-gpu-blocks-override", str(blocks),
    ]  # fmt: skip
    with ExitStack() as stack:
        prefix = stack.enter_context(_network(run_dir)) if os.environ.get("DYN_ISOLATE", "1") == "1" else []
        log = run_dir / "frontend.log"
        frontend = stack.enter_context(process([*prefix, str(python), "-m", *frontend_args], log, env))
        mockers = {
            run_dir / f"mocker-{number}.log": [*prefix, str(python), "-m", *worker_args] for number in range(workers)
        }
        children = {log: stack.enter_context(process(command, log, env)) for log, command in mockers.items()}
        wait_until(
            lambda: _instances([*prefix, str(python), "-c", _PROBE, url]) >= workers, _START_S,
            {log: frontend, **children},
        )  # fmt: skip
        time.sleep(_SUBSCRIBES_S)
        watch = {"api": [frontend.pid], "workers": [child.pid for child in children.values()]}
        yield System("dynamo", url, _MODEL, watch, prefix)


@contextmanager
def _network(run_dir: Path) -> Iterator[list[str]]:
    """A network namespace with loopback only, as its event sockets bind all addresses: the command that enters it."""
    log = run_dir / "network.log"
    with process(["unshare", "--net", "sh", "-c", _NETWORK], log) as holder:
        wait_until(lambda: "ready" in log.read_text(), _NETWORK_S, {log: holder})
        yield ["nsenter", "--target", str(holder.pid), "--net"]


def _instances(probe: Sequence[str]) -> int:
    """Workers that its frontend knows; 0 also while it does not answer."""
    with suppress(ValueError, subprocess.TimeoutExpired):
        return int(subprocess.run(probe, capture_output=True, text=True, timeout=10, check=False).stdout)
    return 0


def _python(run_dir: Path, size: Size) -> Path:
    """Python of its virtual environment, which is made the first time. Raises: Unavailable."""
    folder = Path(os.environ.get("DYN_VENV", ".xylem/dynamo-venv")).resolve()
    python = folder / "bin/python"
    if python.exists():
        return python
    if size.smallest:
        raise Unavailable(f"no NVIDIA Dynamo in {folder}, and the smallest size doesn't install it")
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    own = [*pip, "--no-deps", f"ai-dynamo=={_VERSION}", f"ai-dynamo-runtime=={_VERSION}"]
    for command in ([sys.executable, "-m", "venv", str(folder)], own, [*pip, *_PACKAGES]):
        finished(command, run_dir / "install.log", _INSTALL_S, shlex.join(command))
    return python
