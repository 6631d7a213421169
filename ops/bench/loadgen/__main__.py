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
    options.add_argument("--base-url", required=True, help="such as http://127.0.0.1:8000")
    options.add_argument("--path", default=Load.path)
    options.add_argument("--model", required=True)
    options.add_argument("--label", default="", help="is in the line of figures")
    options.add_argument("--concurrency", type=int, default=Load.concurrency, help="connections")
    options.add_argument("--requests", type=int, default=Load.requests)
    options.add_argument("--warmup", type=int, default=0, help="requests that come first and do not count")
    options.add_argument("--max-seconds", type=float, default=Load.max_seconds, help="no request is begun later")
    options.add_argument("--timeout", type=float, default=Load.timeout, help="of a request, seconds")
    options.add_argument("--prompt", choices=KINDS, default=Load.prompt)
    options.add_argument("--prompt-words", type=int, default=Load.prompt_words)
    options.add_argument("--suffix-words", type=int, default=Load.suffix_words, help="of each prompt of a group")
    options.add_argument("--groups", type=int, default=Load.groups, help="of prompts that begin alike")
    options.add_argument("--seed", type=int, default=Load.seed)
    options.add_argument("--max-tokens", type=int, default=Load.max_tokens)
    options.add_argument("--stream", action="store_true")
    options.add_argument("--extra-body", default=Load.extra_body, help="a JSON object, added to each request")
    options.add_argument("--procs", type=int, default=Load.procs, help="processes of this client")
    options.add_argument("--watch", action="append", default=[], metavar="PART=ID[,ID]", help="processes under test")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())
