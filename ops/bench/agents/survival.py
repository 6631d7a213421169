"""Structured answers while their workers are killed: each must equal that of an undisturbed fleet."""

import asyncio
import random
from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.size import Size
from tests.chaos.faults import worker_killed
from tests.chaos.fleet import TEMPLATE, Fleet
from tests.chaos.load import make_structured_cases
from tests.chaos.run import Report, run
from tests.stack import ROOT, mock_pool

_KILLS = 50
_FEW = 8  # on vLLM, in a quick run
_VLLM = {
    "model": "smollm2",
    "engine": "vllm",
    "path": str(ROOT / ".xylem/models/SmolLM2-135M-Instruct"),
    "max_model_len": 1024,
    "max_running": 8,
    "args": {"kv_cache_memory_bytes": 2**28},
    "chat_template": str(TEMPLATE),
}
_ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def on_mock(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Sampled answers, three workers."""
    pools = {"decode-pool-a": mock_pool(step_ms=10.0) | {"chat_template": str(TEMPLATE)}}
    cases = make_structured_cases("mock", 24, random.Random(1))
    kills = size.of(_KILLS, _KILLS, 1)
    with Fleet(out_dir, pools, forks=size.smallest) as fleet:
        return _figures("mock", _killed(fleet, cases, kills, 12, say), kills)


def on_vllm(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Greedy answers, two workers. Raises: Unavailable."""
    size.needs("real vLLM", "vllm")
    kills = size.of(_KILLS, _FEW, 1)
    cases = make_structured_cases("smollm2", 6, random.Random(1), temperature=0, most=(60, 120))
    with Fleet(out_dir, {"decode-pool-a": _VLLM}, workers=2, **_ONE_THREAD) as fleet:
        return _figures("vllm", _killed(fleet, cases, kills, 4, say), kills)


def _killed(fleet: Fleet, cases: list[Any], kills: int, clients: int, say: Say) -> Report:
    def tell(number: int, _fault: str, _took_s: float) -> None:
        say(f"structured answers: {number} of {kills} kills")

    return asyncio.run(run(fleet, cases, [worker_killed] * kills, seed=1, clients=clients, tell=tell))


def _figures(engine: str, report: Report, kills: int) -> dict[str, Any]:
    return {
        f"survival_{engine}": {"kills": kills, "answers": report.requests, "unequal": report.bad},
        f"schema_survives_{engine}": 1 - len(report.bad) / report.requests,
    }
