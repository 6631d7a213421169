"""Pictures a second through us, beside diffusers called in a loop; and the steps that a client costs after it left."""

import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from ops.bench.events import events
from ops.bench.load import System
from ops.bench.media.worker_metrics import told
from ops.bench.parts import Say
from ops.bench.piped import in_turns, piped
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet
from tests.stack import ROOT

_AT_ONCE, _STEPS, _SIZE = 4, 20, 64  # pictures of a request, and of a turn of the loop; steps; pixels
_LONG = 200  # steps of a picture that nobody waits for
_METRIC = "xylem_worker_paint_steps"
# A script, run with a pipeline's folder: loads, prints `ready`, and for each line paints so many, and prints seconds.
_LOOP = f"""
import json, sys, time, torch
from diffusers import DiffusionPipeline
torch.set_num_threads(1)
pipe = DiffusionPipeline.from_pretrained(sys.argv[1])
pipe.set_progress_bar_config(disable=True)
print("ready", flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    for seed in range(int(line)):
        drawn = torch.Generator("cpu").manual_seed(seed)
        pipe("a red circle", height={_SIZE}, width={_SIZE}, num_inference_steps={_STEPS}, generator=drawn).images[0]
    print(json.dumps(time.perf_counter() - began), flush=True)
"""


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`images_per_s`, `loop_images_per_s`, `images_ratio`, and the most `cancel_steps`. Raises: Unavailable."""
    size.needs("diffusers", "diffusers")
    from tests.pipelines import make  # imports torch, with whose objects `guards` would measure longer stalls

    say("making a pipeline")
    model = make("sd", out_dir / "sd")
    rules = {"size": f"{_SIZE}x{_SIZE}", "steps": _STEPS, "max_steps": _LONG}
    pool = {
        "model": "bench", "engine": "diffusers", "task": "image", "path": str(model), "max_running": _AT_ONCE,
        "args": {"threads": 1, "batch": 1}, "painting": rules,  # on a CPU, several at once are no faster
    }  # fmt: skip
    with ExitStack() as up:
        say("loading diffusers")
        command = [sys.executable, "-W", "ignore", "-c", _LOOP, str(model)]
        loop = up.enter_context(piped(command, out_dir / "loop.log", {"HF_HUB_OFFLINE": "1"}, ROOT))
        say("loading the system")
        system = up.enter_context(fleet(out_dir / "xylem", {"paint": pool}, {"paint": 1}))
        client = up.enter_context(httpx.Client(timeout=300))
        pairs = in_turns(
            size.of(20, 4, 1),
            lambda _: _over_http(client, system),
            lambda _: _AT_ONCE / float(loop.ask(str(_AT_ONCE))),
            say,
        )
        say("leaving")
        late_steps = max(_steps_after_leaving(client, system) for _ in range(size.of(5, 2, 1)))
    return {
        "images_per_s": statistics.median(ours for ours, _ in pairs),
        "loop_images_per_s": statistics.median(theirs for _, theirs in pairs),
        "images_ratio": statistics.median(ours / theirs for ours, theirs in pairs),
        "images_pairs": pairs,
        "cancel_steps": late_steps,
    }


def _over_http(client: httpx.Client, system: System) -> float:
    """Pictures a second. Raises: Unavailable."""
    body = {"model": system.model, "prompt": "a red circle", "n": _AT_ONCE, "seed": 0}
    began = time.perf_counter()
    answer = client.post(f"{system.url}/v1/images/generations", json=body)
    took = time.perf_counter() - began
    if answer.status_code != 200:
        raise Unavailable(f"/v1/images/generations: {answer.text[:200]}")
    return _AT_ONCE / took


def _steps_after_leaving(client: httpx.Client, system: System) -> int:
    """Steps that the engine computes after the one whose preview made its client leave."""
    before = _steps(client, system)
    body = {"model": system.model, "prompt": "a red circle", "num_inference_steps": _LONG, "partial_images": 1}
    with client.stream("POST", f"{system.url}/v1/images/generations", json=body | {"stream": True}) as answer:
        next(events(answer))
    return _steps(client, system) - before - _LONG // 2


def _steps(client: httpx.Client, system: System) -> int:
    """All steps so far, once the engine does no more."""
    last = -1.0
    while True:
        now = told(client, system.url, _METRIC)
        if now == last:
            return int(now)
        last = now
