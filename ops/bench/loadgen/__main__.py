"""`python -m ops.bench.loadgen run --base-url URL --model NAME …`: sends load, and prints one line of JSON."""

import argparse
import dataclasses
import json
import multiprocessing
import sys
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ops.bench.loadgen.cpu import Reading
from ops.bench.loadgen.load import Load, Share, asked, run
from ops.bench.loadgen.prompts import KINDS

_HELP = {
    "base_url": "such as http://127.0.0.1:8000", "concurrency": "connections", "procs": "processes of this client",
    "max_seconds": "no request is begun later", "timeout": "of a request, seconds",
    "suffix_words": "of each prompt of a group", "groups": "of prompts that begin alike",
    "extra_body": "a JSON object, added to each request",
}  # fmt: skip


def main() -> int:
    """0 if a request was answered."""
    arguments = _arguments()
    fields = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Load)}
    load = Load(**fields)
    load = dataclasses.replace(load, procs=max(1, min(load.procs, load.concurrency)))
    if arguments.warmup:
        warm_up = asked(load, load.payloads(arguments.warmup, "warm-up"), min(load.concurrency, arguments.warmup))
        if not warm_up.answers:
            sys.exit(f"the warm-up failed: {warm_up.errors[0]}")
    watch = {
        part: [int(id_) for id_ in ids.split(",") if id_]
        for part, _, ids in (w.partition("=") for w in arguments.watch)
    }
    barrier, results = multiprocessing.Barrier(load.procs + 1), multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=run, args=(load, index, barrier, results)) for index in range(load.procs)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    before = Reading.take(watch)
    barrier.wait()
    shares = [share for share in (results.get() for _ in processes) if share is not None]
    after = Reading.take(watch)
    for process in processes:
        process.join()
    if len(shares) < len(processes):
        sys.exit("a process of the load generator failed")
    line = {"label": arguments.label, **figures(load, shares), **_cpu(shares, before, after)}
    print(json.dumps(line), flush=True)
    return 0 if line["ok"] else 1


def figures(load: Load, shares: Sequence[Share]) -> dict[str, Any]:
    """The figures of all shares together. Times in ms, of the answers that had no error."""
    wall_s = max(share.ended for share in shares) - min(share.began for share in shares)
    answers, tokens = sum(share.answers for share in shares), sum(share.tokens for share in shares)
    prompt_tokens = sum(share.prompt_tokens for share in shares)
    cached_tokens = sum(share.cached_tokens for share in shares)
    errors = [error for share in shares for error in share.errors]
    events = sum(share.events for share in shares)
    line: dict[str, Any] = {
        "stream": load.stream, "prompt": load.prompt, "concurrency": load.concurrency, "max_tokens": load.max_tokens,
        "requests": answers + len(errors), "ok": answers, "errors": len(errors),
        "wall_s": round(wall_s, 3), "req_s": round(answers / wall_s, 1),
        "out_tokens": tokens, "tok_s": round(tokens / wall_s, 1), "sse_events": events if load.stream else 0,
        "prompt_tokens_mean": round(prompt_tokens / answers, 1) if answers else 0,
        "cached_tokens": cached_tokens, "cached_ratio": round(cached_tokens / prompt_tokens, 4) if prompt_tokens else 0,
        "e2e_ms": spread([share.whole for share in shares]),
    }  # fmt: skip
    if load.stream:
        reads = sum(share.reads for share in shares)
        line |= {
            "ttft_ms": spread([share.ttft for share in shares]), "itl_ms": spread([share.gaps for share in shares]),
            "tpot_ms": spread([share.per_token for share in shares]),
            "events_per_read": round(events / max(1, reads), 2),
        }  # fmt: skip
    return line | ({"first_error": errors[0]} if errors else {})


def spread(parts: Sequence["array[float]"]) -> dict[str, float] | None:
    """Mean, percentiles and maximum in ms; None: there is nothing."""
    values_s = sorted(chain.from_iterable(parts))
    if not values_s:
        return None
    percentiles = {f"p{p}": values_s[min(len(values_s) - 1, len(values_s) * p // 100)] for p in (50, 90, 99)}
    spread_s = {"mean": sum(values_s) / len(values_s), **percentiles, "max": values_s[-1]}
    return {name: round(1e3 * value, 3) for name, value in spread_s.items()}


def _cpu(shares: Sequence[Share], before: Reading, after: Reading) -> dict[str, Any]:
    """CPU time of each watched part; of this client; and of others, who spoil a run."""
    own_s = sum(share.cpu_s for share in shares)
    answers, tokens = sum(share.answers for share in shares), sum(share.tokens for share in shares)
    parts = {part: after.cpu_s[part] - cpu_s for part, cpu_s in before.cpu_s.items()}
    line: dict[str, Any] = {"loadgen_procs": len(shares), "loadgen_cpu_s": round(own_s, 3)}
    if not parts:
        return line
    other_s = after.busy_s - before.busy_s - own_s - sum(parts.values())
    return line | {
        "cpu": {
            part: {
                "cpu_s": round(cpu_s, 2),
                "per_1k_req": round(1e3 * cpu_s / answers, 3) if answers else None,
                "per_1M_tok": round(1e6 * cpu_s / tokens, 1) if tokens else None,
                "rss_mb": round(after.memory[part] / 2**20),
            }
            for part, cpu_s in parts.items()
        },
        "other_cpu_s": round(max(0.0, other_s), 2),
        "steal_s": round(after.stolen_s - before.stolen_s, 2),
    }


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m ops.bench.loadgen")
    options.add_argument("command", choices=["run"])
    for field in dataclasses.fields(Load):
        name, about = f"--{field.name.replace('_', '-')}", _HELP.get(field.name)
        if field.type is bool:
            options.add_argument(name, action="store_true", help=about)
        elif field.default is dataclasses.MISSING:
            options.add_argument(name, required=True, help=about)
        else:
            choices = KINDS if field.name == "prompt" else None
            options.add_argument(name, type=type(field.default), default=field.default, choices=choices, help=about)
    options.add_argument("--label", default="", help="is in the line of figures")
    options.add_argument("--warmup", type=int, default=0, help="requests that come first and do not count")
    options.add_argument("--watch", action="append", default=[], metavar="PART=ID[,ID]", help="processes under test")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())
