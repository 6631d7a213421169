"""Dynamo's own replay of the day with its planner, on the same engine.

It needs Dynamo's virtual environment (`ops/bench/systems.py` says where) with the packages that its planner imports.
What it imports of `aisimulate`, which isn't published, is replaced by empty classes: its modes that need no model of
the engine don't use them.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.planner.days import DAY_S, again, trace
from ops.bench.planner.engine import KV_BLOCKS
from ops.bench.planner.fleet import FIRST, OBJECTIVE, START_S, Fleet, ours
from ops.bench.processes import Unavailable
from ops.bench.size import Size

PACKAGES = ("pmdarima", "filterpy", "prophet", "plotly", "prometheus-api-client")
_MODES: dict[str, dict[str, Any]] = {
    "latency, at least 2": {"optimization_target": "latency", "min_endpoint": 2},
    "latency": {"optimization_target": "latency"},
    "throughput": {"optimization_target": "throughput"},
}
_LIMIT_S = 900.0


def dynamo(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Attainment and mean workers of fixed fleets and of its planner's modes. Raises: Unavailable, SettingsError."""
    size.needs("NVIDIA Dynamo")
    python = Path(os.environ.get("DYN_VENV", str(Path(".xylem/dynamo-venv").resolve()))) / "bin/python"
    if not python.exists():
        raise Unavailable(f"no NVIDIA Dynamo in its virtual environment: {python} is missing")
    day, rows = directory / "day.jsonl", trace()
    with day.open("w") as out:
        block = 0
        for row in rows:
            blocks = -(-row.prompt // 512)
            ids = list(range(block, block + blocks))
            block += blocks
            line = {"timestamp": round(row.at * 1000), "input_length": row.prompt, "output_length": row.answer}
            out.write(json.dumps({**line, "hash_ids": ids}) + "\n")
    figures = {}
    for name, mode in list(_MODES.items())[: size.of(None, 1, 1)]:
        say(f"Dynamo's planner: {name}")
        figures[name] = _replayed(python, day, directory / "dynamo.log", mode)
    say("our planner on the same day")
    ours_here = Fleet(START_S, FIRST).run(again(rows, 0), DAY_S, ours)
    return {"dynamo": figures, "workers_vs_dynamo": compared(figures, ours_here.workers)}


def compared(found: dict[str, dict[str, float]], workers: float) -> float:
    """Our mean workers over those of its cheapest mode that attains the share; or of the mode that attains the most."""
    good = [mode["workers"] for mode in found.values() if mode["attained"] >= OBJECTIVE.share]
    return workers / (min(good) if good else max(found.values(), key=lambda mode: mode["attained"])["workers"])


def _replayed(python: Path, day: Path, log: Path, mode: dict[str, Any]) -> dict[str, float]:
    job = {
        "trace": str(day), "workers": FIRST, "start_s": START_S, "mode": mode, "blocks": KV_BLOCKS,
        "ttft_ms": OBJECTIVE.ttft_s * 1000, "itl_ms": OBJECTIVE.itl_s * 1000,
    }  # fmt: skip
    script = Path(__file__).with_name("dynamo_replay.py")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("a") as err:  # -P: this folder has a `dynamo`, too
        try:
            run = subprocess.run(
                [python, "-P", script, json.dumps(job)], stdout=subprocess.PIPE, stderr=err, text=True, env=env,
                timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Dynamo's replay took longer than {_LIMIT_S:.0f} s: {log}") from None
    if run.returncode:
        hint = f"{python.parent}/pip install {' '.join(PACKAGES)}"
        raise Unavailable(f"Dynamo's replay failed ({log}); its planner needs: {hint}")
    answer: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return answer
