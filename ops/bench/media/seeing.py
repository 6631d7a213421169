"""The model that sees, through the whole system: right answers about pictures of a fresh seed, and whether they are the
same where another worker encodes the pictures."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from app.cli.stack import cpu_shares, usable_cores
from ops.bench.media.seen import seen
from ops.bench.media.worker_metrics import told
from ops.bench.parts import Say
from ops.bench.processes import Unavailable, finished
from ops.bench.size import Size
from ops.bench.systems import fleet
from tests.stack import ROOT

_POOL = "shapes-pool"
_METRIC = "xylem_worker_pictures_fetched"
_PICTURES = 50
_LIMIT_S = 900.0


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`seen` of 50, the seed, the wrong answers; `epd_equal`, a share of the 50. Raises: Unavailable."""
    size.needs("real vLLM", "vllm")
    count = size.of(_PICTURES, _PICTURES, 2)
    say("making the model that sees")
    pools = _pools(_model(out_dir / "prepare.log"))
    say("loading the system")
    with fleet(out_dir / "xylem", pools, dict.fromkeys(pools, 1)) as system, httpx.Client(timeout=120) as client:
        client.base_url = system.url
        try:
            say(f"{count} pictures")
            together = seen(client, "together", random.SystemRandom().randrange(10**9), count)
            say(f"{count} pictures, encoded apart")
            apart = seen(client, "apart", together["seed"], count)
            fetch_count = told(client, system.url, _METRIC)
        except httpx.HTTPError as exc:
            raise Unavailable(f"a question got no answer: {exc}") from exc
    return {"seen": together["seen"], "seen_seed": together["seed"], "seen_wrong": together["wrong"]} | {
        "epd_equal": equal(together["answers"], apart["answers"], fetch_count)
    }


def equal(together: Sequence[str], apart: Sequence[str], fetched: float) -> float:
    """The share of answers that are the same; not more than were made with pictures that came from an encoder."""
    same = sum(a == b for a, b in zip(together, apart, strict=True))
    return min(same, fetched) / len(together)


def _pools(model: Path) -> dict[str, dict[str, Any]]:
    """One pool as `make run MODEL=shapes` has it; the same with an encoder."""
    shipped_pool = yaml.safe_load((ROOT / "app/cli/pools/shapes.yaml").read_text())["pools"][_POOL]
    pools = {}
    roles = {"together": ("together", "both"), "apart": ("apart", "both"), "encodes": ("apart", "encode")}
    for (name, (of, role)), cores in zip(roles.items(), cpu_shares(usable_cores(), len(roles)), strict=True):
        args = shipped_pool["args"] | {"env": {"VLLM_CPU_OMP_THREADS_BIND": cores}, "kv_cache_memory_bytes": 2**28}
        pools[name] = shipped_pool | {"model": of, "role": role, "path": str(model), "args": args}
    return pools


def _model(log: Path) -> Path:
    """Raises: Unavailable."""
    dest = ROOT / ".xylem/models/shapes"
    command = [sys.executable, "-m", "app.demo_models.shapes", str(dest), "seeing"]
    finished(command, log, _LIMIT_S, "making the model", cwd=ROOT)
    return dest
