"""The worst requests that `app/endpoints.py` has rows for: what they cost refused, and another tenant's stream."""

from pathlib import Path
from typing import Any

from ops.bench.overload.beside import POOLS, pauses
from ops.bench.overload.uncharged import uncharged
from ops.bench.parts import Say
from ops.bench.size import Size
from ops.bench.systems import fleet
from tests.stack import free_port
from tests.worst_requests import ADMIN, MAX_BODY, pools


def worst_requests(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable. KeyError: a row has no request. AssertionError: one was served, or failed."""
    grpc_port, most = free_port(), size.of(MAX_BODY, MAX_BODY, 2**17)
    env = {"XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": ADMIN["x-api-key"], "XYLEM_GRPC_PORT": str(grpc_port)}
    with fleet(out_dir / "fleet", POOLS | pools(out_dir / "models"), dict.fromkeys(POOLS, 1), more_env=env) as system:
        say("the worst requests, refused")
        refusals = uncharged(system, grpc_port, size.of(10, 5, 1), most)
        say("another tenant's stream beside them")
        runs, growth = pauses(system, grpc_port, out_dir, size.of(3, 3, 1), size.of(60.0, 20.0, 0.5), most)
    return {
        "worst_gap_ms": 1000 * max(run.beside - run.without for run in runs),
        "redis_growth_mb": growth / 2**20,
        "uncharged_cpu_s": max(one.cpu_s for one in refusals),
        "pauses": [run._asdict() for run in runs],
        "refused": [one._asdict() for one in refusals],
    }
