"""A batch alone on real vLLM, through the whole system, against `LLM.generate` given all prompts at once."""

import json
import sys
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import yaml

from app.cli import stack
from ops.bench.batch.client import Client, write_lines
from ops.bench.disagg.play import Cpu
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.processes import Unavailable, finished
from ops.bench.size import Size
from ops.bench.systems import fleet

_POOL, _ENDPOINT = "decode-pool-a", "/v1/chat/completions"
_SHIPPED = Path(stack.__file__).parent / "pools" / "cpu.yaml"
_MODEL = Path(".xylem/models/SmolLM2-135M-Instruct")
_PROMPTS, _QUICK_PROMPTS = 192, 96
_WORDS = (70, 170)  # of a prompt: a word is about a token, and the template adds 30
_TOKENS = 64  # of an answer
_WARM_UP = 8  # prompts
_LIMIT_S = 600.0
_PARTS = ("api", "batch", "workers", "redis", "engine")  # separate processes
_WORD_LIST = """
the of and to in is that for it was with be by on not he his but at are this have from or had an they which one you were
all her she there would their we him been has when who will no more if out so up said what its about than into them can
only other time new some could these two may first then do any like my now over such our man me even most made after
"""


def alone(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Runs pairs one after the other, each with its own prompts on both sides. Raises: Unavailable."""
    size.needs("real vLLM")
    if not (_MODEL / "config.json").exists():
        raise Unavailable(f"no model in {_MODEL}: `make run` makes it")
    pool = yaml.safe_load(_SHIPPED.read_text())["pools"][_POOL] | {"path": str(_MODEL.resolve())}
    (cores,) = stack.cpu_shares(stack.usable_cores(), 1)
    env = {"VLLM_CPU_OMP_THREADS_BIND": cores, "TORCH_COMPILE_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    rng = Random(1)
    rows = []
    say("alone: starting vLLM behind Xylem")
    with fleet(directory / "xylem", {_POOL: pool}, {_POOL: 1}, 1, env) as system:
        _ours(system, directory / "warm-up", _texts(rng, _WARM_UP))
        for pair in range(size.of(2, 1, 1)):
            texts = _texts(rng, size.of(_PROMPTS, _QUICK_PROMPTS, 4))
            say(f"alone: LLM.generate, {len(texts)} prompts")
            theirs = _theirs(directory / f"generate-{pair}", pool, env, texts)
            say(f"alone: a batch of {len(texts)} lines")
            ours = _ours(system, directory / f"batch-{pair}", texts)
            rows.append(_compared(ours, theirs))
    ratio, others = median(row["ratio"] for row in rows), max(row["other_cores"] for row in rows)
    return {"alone": rows, "throughput_ratio": ratio, "alone_other_cores": others}


def _texts(rng: Random, count: int) -> list[str]:
    return [" ".join(rng.choices(_WORD_LIST.split(), k=rng.randint(*_WORDS))) for _ in range(count)]


def _theirs(path: Path, pool: dict[str, Any], env: dict[str, str], texts: list[str]) -> dict[str, Any]:
    """`LLM.generate` in its own process, which loads the model first."""
    job, result, log = (path.with_suffix(suffix) for suffix in (".json", ".result.json", ".log"))
    shape = {"model": pool["path"], "block_size": pool["block_size"], "max_model_len": pool["max_model_len"]}
    engine = {**pool["args"], **shape, "max_num_seqs": pool["max_running"]}
    warm_up = _texts(Random(0), _WARM_UP)
    job.write_text(json.dumps({"engine": engine, "prompts": texts, "warm_up": warm_up, "tokens": _TOKENS}))
    command = [sys.executable, "-m", "ops.bench.batch.generate", str(job), str(result)]
    finished(command, log, _LIMIT_S, "LLM.generate", env)
    figures: dict[str, Any] = json.loads(result.read_text())
    return figures


def _ours(system: System, path: Path, texts: list[str]) -> dict[str, Any]:
    """Figures of a batch.

    Times are from POST /v1/batches until it is completed, and from the first line's beginning to the last one's end.
    """
    messages = [{"role": "user", "content": text} for text in texts]
    same = {"model": system.model, "temperature": 0, "max_tokens": _TOKENS, "ignore_eos": True}
    file = path.with_suffix(".jsonl")
    write_lines(file, _ENDPOINT, ({**same, "messages": [each]} for each in messages))
    client = Client(system.url)
    id_ = client.upload(file)
    cpu, began = Cpu(system.watch), time.perf_counter()
    batch = client.create(id_, _ENDPOINT)
    client.until(batch, lambda b: b["status"] != "validating", 60, 0.02)
    run_start = time.perf_counter()
    client.until(batch, lambda b: sum(_done(b)) == len(texts), _LIMIT_S)
    run = time.perf_counter()
    record = client.until(batch, lambda b: b["status"] == "completed", 60, 0.02)
    end, cores = time.perf_counter(), cpu.cores()
    if record["request_counts"]["failed"]:
        raise Unavailable(f"lines of the batch failed: {record['request_counts']}")
    answers = client.answers(record["output_file_id"])
    return {
        "seconds": end - began, "run_s": run - run_start, "validate_s": run_start - began, "finish_s": end - run,
        "tokens": record["usage"]["output_tokens"], "prompt_tokens": record["usage"]["input_tokens"],
        "texts": [answers[str(i)]["choices"][0]["message"]["content"] for i in range(len(texts))], "cores": cores,
    }  # fmt: skip


def _done(batch: dict[str, Any]) -> tuple[int, int]:
    return batch["request_counts"]["completed"], batch["request_counts"]["failed"]


def _compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    if (ours["tokens"], ours["prompt_tokens"]) != (theirs["tokens"], theirs["prompt_tokens"]):
        raise Unavailable(
            f"both sides have to compute the same: {ours['prompt_tokens']} and {theirs['prompt_tokens']} tokens of "
            f"prompts, {ours['tokens']} and {theirs['tokens']} of answers"
        )
    equal = sum(a == b for a, b in zip(ours.pop("texts"), theirs.pop("texts"), strict=True))
    others = [
        side["cores"]["machine"] - sum(side["cores"].get(part, 0.0) for part in _PARTS) for side in (ours, theirs)
    ]
    return {
        "ours": ours, "theirs": theirs, "equal": equal, "tokens": ours["tokens"],
        "ratio": theirs["seconds"] / ours["seconds"], "run_ratio": theirs["seconds"] / ours["run_s"],
        "other_cores": max(others),
    }  # fmt: skip
