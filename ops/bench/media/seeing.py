"""How many questions about pictures of a fresh seed the model that sees answers rightly, through the whole system."""

import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import yaml

from ops.bench.media.seen import seen
from ops.bench.parts import Say
from ops.bench.processes import Unavailable, tail
from ops.bench.systems import fleet
from tests.stack import ROOT

_POOL = "shapes-pool"


def measured(out_dir: Path, _quick: bool, say: Say) -> dict[str, Any]:
    """`seen` of 50, the seed, and the wrong answers. Raises: Unavailable."""
    if find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed")
    out_dir.mkdir(parents=True, exist_ok=True)
    say("making the model that sees")
    pool = yaml.safe_load((ROOT / "app/cli/pools/shapes.yaml").read_text())["pools"][_POOL]
    pool |= {"path": str(_model(out_dir / "prepare.log"))}
    say("loading the system")
    with (
        fleet(out_dir / "xylem", {_POOL: pool}, {_POOL: 1}) as system,
        httpx.Client(base_url=system.url, timeout=120) as client,
    ):
        say("50 pictures")
        try:
            found = seen(client, system.model, random.SystemRandom().randrange(10**9))
        except httpx.HTTPError as exc:
            raise Unavailable(f"a question got no answer: {exc}") from exc
    return {"seen": found["seen"], "seen_seed": found["seed"], "seen_wrong": found["wrong"]}


def _model(log: Path) -> Path:
    """Raises: Unavailable."""
    dest = ROOT / ".xylem/models/shapes"
    command = [sys.executable, "-m", "workers.shapes", str(dest), "seeing"]
    with log.open("w") as out:
        made = subprocess.run(command, check=False, stderr=out, cwd=ROOT)
    if made.returncode:
        raise Unavailable(f"the model was not made: {tail(log)}")
    return dest
