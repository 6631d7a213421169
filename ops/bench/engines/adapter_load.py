"""The time that one call takes to bring an adapter to four workers, without the engines' own loading."""

import time
from pathlib import Path
from typing import Any

import httpx

from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet
from tests.lora import tiny_adapter
from tests.stack import mock_pool

_POOL = "decode-pool-a"
_WORKERS = 4
_ENGINE_S = 0.2  # what each mock takes to load an adapter
_TIMES, _QUICK_TIMES = 20, 6


def fleet_load(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """The longest of several calls. Raises: Unavailable."""
    sources = (out_dir / "adapters").resolve()
    times = size.of(_TIMES, _QUICK_TIMES, 1)
    entry, env = mock_pool(adapter_load_s=_ENGINE_S), {"XYLEM_LORA_SOURCES": str(sources)}
    took: list[float] = []
    say("starting four workers")
    with (
        fleet(out_dir / "xylem", {_POOL: entry}, {_POOL: _WORKERS}, more_env=env) as up,
        httpx.Client(base_url=up.url, timeout=90) as client,
    ):
        for number in range(times):
            say(f"adapter {number + 1} of {times}")
            path = tiny_adapter(sources / f"a{number}", f"weights {number}")
            body = {"name": f"a{number}", "source": str(path), "model": up.model, "min_workers": _WORKERS}
            began = time.perf_counter()
            answer = client.post("/admin/loras", json=body)
            took.append(time.perf_counter() - began - _ENGINE_S)
            if not answer.is_success or len(answer.json()["workers"]) != _WORKERS:
                raise Unavailable(f"not all workers have the adapter: {answer.text[:300]}")
            client.delete(f"/admin/loras/a{number}").raise_for_status()
    return {"lora_fleet_loads_s": took, "lora_fleet_load_s": max(took)}
