"""Seconds of speech that are written down in a second: through us, and by vLLM alone with the same arguments."""

import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import yaml

from app.demo_models.model_folder import prepare
from app.demo_models.whisper import NAME, convert
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.piped import in_turns, piped
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet
from tests.speech.samples import RIVERS
from tests.stack import ROOT

_WINDOW_S = 30.0
_BIND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}  # both engines are there at once
# A script, run with a pools file and a sound: loads, prints `ready`, and for each line it transcribes all windows at
# once, as a job each, and prints seconds.
_ALONE = f"""
import asyncio, json, os, sys, time
from pathlib import Path
import numpy as np
from app.dispatch.models.models import load_models
from app.engines.vllm.args import engine_args
from app.engines.vllm.convert import sampling_params
from app.media.sound import decode_sound
from app.messages.job import Sampling
from app.pools.pools_file import load_pools

async def main():
    declared = load_pools(Path(sys.argv[1]))
    (pool,), (model,) = declared.pools.values(), load_models(declared).values()
    args = engine_args(pool, "127.0.0.1")
    os.environ.update(args.environment)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args.fields))
    found = decode_sound(Path(sys.argv[2]).read_bytes(), most_s=1800, window_s={_WINDOW_S})
    windows = [np.frombuffer(one.data, "<f4") for one in found]
    prompt = model.speech.prompt("transcribe", None, times=False)
    room = model.room(prompt, None, "prompt")
    asked = Sampling(max_tokens=room, temperature=0.0, logit_bias=model.speech.bias(times=False))
    async def one(number, window):
        encoder = {{"prompt": "", "multi_modal_data": {{"audio": (window, 16_000)}}}}
        whole = {{"encoder_prompt": encoder, "decoder_prompt": {{"prompt_token_ids": prompt}}}}
        (made,) = await engine.renderer.render_cmpl_async([whole])
        async for _ in engine.generate(made, sampling_params(asked), number):
            pass
    print("ready", flush=True)
    turn = 0
    while await asyncio.to_thread(sys.stdin.readline):
        turn, began = turn + 1, time.perf_counter()
        await asyncio.gather(*(one(f"{{turn}}-{{i}}", window) for i, window in enumerate(windows)))
        print(json.dumps(time.perf_counter() - began), flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`transcribed_s_per_s`, `alone_s_per_s` and `transcribe_ratio`. Raises: Unavailable."""
    size.needs("real vLLM")
    model = _model()
    pool = {
        "model": "bench", "engine": "vllm", "task": "transcribe", "path": str(model), "max_running": 8,
        "args": {"kv_cache_memory_bytes": 2**28},
    }  # fmt: skip
    pools_file, sound = out_dir / "pools.yaml", out_dir / "sound.ogg"
    pools_file.write_text(yaml.safe_dump({"pools": {"speech": pool}}))
    sound.write_bytes(RIVERS)
    script = out_dir / "alone.py"
    script.write_text(_ALONE)  # vLLM's own processes import it
    with ExitStack() as up:
        say("loading vLLM alone")
        command = [sys.executable, "-W", "ignore", str(script), str(pools_file), str(sound)]
        env = _BIND | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        alone = up.enter_context(piped(command, out_dir / "alone.log", env, ROOT))
        say("loading the system")
        system = up.enter_context(fleet(out_dir / "xylem", {"speech": pool}, {"speech": 1}, more_env=_BIND))
        client = up.enter_context(httpx.Client(timeout=600))
        turns = size.of(12, 4, 1)
        pairs = in_turns(turns, lambda _: _over_http(client, system), lambda _: float(alone.ask("go")), say)
        seconds = float(_asked(client, system, "verbose_json")["duration"])
    return {
        "transcribed_s_per_s": seconds / statistics.median(ours for ours, _ in pairs),
        "alone_s_per_s": seconds / statistics.median(theirs for _, theirs in pairs),
        "transcribe_ratio": statistics.median(theirs / ours for ours, theirs in pairs),
        "sound_pairs": [[seconds / ours, seconds / theirs] for ours, theirs in pairs],
    }


def _model() -> Path:
    """Raises: Unavailable."""
    dest = ROOT / ".xylem/models" / NAME
    try:
        prepare(dest, convert)
    except FileNotFoundError as exc:
        raise Unavailable(str(exc)) from exc
    return dest


def _over_http(client: httpx.Client, system: System) -> float:
    """Seconds. Raises: Unavailable."""
    began = time.perf_counter()
    _asked(client, system, "json")
    return time.perf_counter() - began


def _asked(client: httpx.Client, system: System, form: str) -> dict[str, Any]:
    fields = {"model": system.model, "response_format": form}
    answer = client.post(f"{system.url}/v1/audio/transcriptions", data=fields, files={"file": RIVERS})
    if answer.status_code != 200:
        raise Unavailable(f"/v1/audio/transcriptions: {answer.text[:200]}")
    content: dict[str, Any] = answer.json()
    return content
