"""Pictures a second through us, beside diffusers called in a loop; and the steps that a client costs after it left."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from app.cli.event_lines import event_lines
from ops.bench.load import System
from ops.bench.media.worker_metrics import told
from ops.bench.parts import Say
from ops.bench.processes import Unavailable, tail
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
    size.needs("diffusers")
    if find_spec("diffusers") is None:
        raise Unavailable("diffusers is not installed")
    from tests.pipelines import make  # imports torch, with whose objects `guards` would measure longer stalls

    say("making a pipeline")
    out_dir.mkdir(parents=True, exist_ok=True)
    model = make("sd", out_dir / "sd")
    rules = {"size": f"{_SIZE}x{_SIZE}", "steps": _STEPS, "max_steps": _LONG}
    pool = {
        "model": "bench", "engine": "diffusers", "task": "image", "path": str(model), "max_running": _AT_ONCE,
        "args": {"threads": 1, "batch": 1}, "painting": rules,  # on a CPU, several at once are no faster
    }  # fmt: skip
    turns, ours, theirs = size.of(20, 4, 1), list[float](), list[float]()
    with ExitStack() as up:
        say("loading diffusers")
        loop = up.enter_context(_loop(out_dir, model))
        say("loading the system")
        system = up.enter_context(fleet(out_dir / "xylem", {"paint": pool}, {"paint": 1}))
        client = up.enter_context(httpx.Client(timeout=300))
        for turn in range(turns + 1):  # the first warms up
            say(f"turn {turn} of {turns}")
            if turn % 2:  # neither is always the first
                per_s = _over_http(client, system), _in_loop(loop)
            else:
                per_s = (_in_loop(loop), _over_http(client, system))[::-1]
            if turn:
                ours.append(per_s[0])
                theirs.append(per_s[1])
        say("leaving")
        late_steps = max(_steps_after_leaving(client, system) for _ in range(size.of(5, 2, 1)))
    return {
        "images_per_s": statistics.median(ours),
        "loop_images_per_s": statistics.median(theirs),
        "images_ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "images_pairs": list(zip(ours, theirs, strict=True)),
        "cancel_steps": late_steps,
    }


@contextmanager
def _loop(out_dir: Path, model: Path) -> Iterator["subprocess.Popen[str]"]:
    """Raises: Unavailable."""
    log = out_dir / "loop.log"
    command = [sys.executable, "-W", "ignore", "-c", _LOOP, str(model)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        log.open("w") as err,
        subprocess.Popen(command, stderr=err, env=os.environ | {"HF_HUB_OFFLINE": "1"}, cwd=ROOT, **pipes) as child,
    ):
        try:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                raise Unavailable(f"diffusers ended: {tail(log)}")
            yield child
        finally:
            child.kill()


def _in_loop(child: "subprocess.Popen[str]") -> float:
    """Pictures a second."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{_AT_ONCE}\n")
    child.stdin.flush()
    return _AT_ONCE / float(json.loads(child.stdout.readline()))


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
        next(line for line in event_lines(answer) if line.startswith("data: "))
    return _steps(client, system) - before - _LONG // 2


def _steps(client: httpx.Client, system: System) -> int:
    """All steps so far, once the engine does no more."""
    last = -1.0
    while True:
        now = told(client, system.url, _METRIC)
        if now == last:
            return int(now)
        last = now


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        found = measured(Path(folder), Size.QUICK, lambda what: print(what, file=sys.stderr))
    print(json.dumps(found))
