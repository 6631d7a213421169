"""A file of 50,000 lines and 200 MB: the cost of its upload, and memory of Redis and processes while it is computed."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from redis import Redis

from ops.bench.batch.client import Client, write_lines
from ops.bench.batch.watch import live_ms, redis_bytes, rss_mb, sampled
from ops.bench.disagg.play import Cpu, percentile
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet

_POOL_NAME, _ENDPOINT = "decode-pool-a", "/v1/chat/completions"
_POOL = {
    "model": "mock", "engine": "mock", "max_running": 64, "max_model_len": 8192, "args": {"speedup": float("inf")},
}  # fmt: skip
_LINES, _LINE = 50_000, 4_060  # lines; bytes of one
_SHORT = 10_000  # lines in a short measurement
_LEAST_MB = 190
_EVERY_S, _LIVE_EVERY_S = 0.05, 0.1
_RUN_LIMIT_S = 420.0


def intake(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    big, short = directory / "big.jsonl", directory / "short.jsonl"
    say("intake: writing the files")
    all_lines = size.of(_LINES, _LINES, 200)
    write_lines(big, _ENDPOINT, _bodies(all_lines, 1))
    if size is Size.QUICK:
        write_lines(short, _ENDPOINT, _bodies(_SHORT, 2))
    if (mb := big.stat().st_size / 1e6) < _LEAST_MB and not size.smallest:
        raise Unavailable(f"the file has only {mb:.0f} MB")
    with fleet(directory / "fleet", {_POOL_NAME: _POOL}, {_POOL_NAME: 2}, 1) as system:
        client, redis = Client(system.url), Redis.from_url(system.redis_url)
        api, worker = rss_mb(system.watch["api"][0]), rss_mb(system.watch["batch"][0])
        cpu = Cpu(system.watch)
        time.sleep(size.of(1.0, 1.0, 0.2))
        before = {"api": api(), "batch": worker(), "redis": redis_bytes(redis)()}
        with (
            sampled(api, _EVERY_S) as apis, sampled(worker, _EVERY_S) as workers,
            sampled(redis_bytes(redis), _EVERY_S) as redis_samples, sampled(live_ms(system.url), _LIVE_EVERY_S) as live,
        ):  # fmt: skip
            say(f"intake: {mb:.0f} MB up")
            began = time.monotonic()
            file = client.upload(big)
            upload_end = time.monotonic()
            batch = client.create(file, _ENDPOINT)
            client.until(batch, lambda b: b["status"] != "validating", 300, 0.02)
            validation_end = time.monotonic()
            if size is Size.QUICK:
                client.cancel(batch)
                _settled(client, batch)
                batch = client.create(client.upload(short), _ENDPOINT)
                client.until(batch, lambda b: b["status"] != "validating", 60, 0.02)
            run_began, lines = time.monotonic(), size.of(_LINES, _SHORT, all_lines)
            say(f"intake: {lines} lines")
            record = client.until(batch, lambda b: b["status"] == "completed", _RUN_LIMIT_S, 0.2)
            end_time = time.monotonic()
            time.sleep(size.of(3.0, 3.0, 0.5))  # until the rest of it is cleaned up
        after, cores = redis_bytes(redis)(), cpu.cores()
        leftovers = _by_kind(redis)
    ours = sum(cores[part] for part in ("api", "workers", "redis", "batch", "client"))
    api_samples = [x for at, x in apis if at <= validation_end]
    return {
        "intake": {
            "file_mb": mb, "lines": all_lines, "run_lines": lines, "completed": record["request_counts"]["completed"],
            "prompt_tokens": record["usage"]["input_tokens"], "cores": cores, "left": leftovers,
            "series": {
                name: [(at - began, x - before.get(name, 0.0)) for at, x in series]
                for name, series in (("api", apis), ("batch", workers), ("redis", redis_samples), ("live", live))
            },
            "marks": {"uploaded": upload_end - began, "validated": validation_end - began, "ended": end_time - began},
        },
        "validate_s": validation_end - upload_end, "upload_s": upload_end - began,
        "api_memory_mb": max(api_samples) - before["api"], "api_memory_mb_run": max(x for _, x in apis) - before["api"],
        "batch_worker_memory_mb": max(x for _, x in workers) - before["batch"],
        "batch_worker_rss_mb": max(x for _, x in workers),
        "redis_bytes_per_line_peak": (max(x for at, x in redis_samples if at >= run_began) - before["redis"]) / lines,
        "redis_bytes_after": after - before["redis"], "lines_per_s": lines / (end_time - run_began),
        "live_p99_ms": percentile([x for _, x in live], 99), "live_max_ms": max(x for _, x in live),
        "live_p99_ms_intake": percentile([x for at, x in live if at <= validation_end], 99),
        "intake_other_cores": cores["machine"] - ours,
    }  # fmt: skip


def _by_kind(redis: "Redis") -> dict[str, int]:
    """Bytes of Redis keys by kind, the largest first."""
    kinds: dict[str, int] = {}
    for key in redis.scan_iter("*"):
        kind = key.decode().removeprefix("xylem:").partition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + (redis.memory_usage(key, samples=0) or 0)
    return dict(sorted(kinds.items(), key=lambda pair: -pair[1])[:6])


def _settled(client: Client, batch: str) -> None:
    """Waits until a cancelled batch has ended and is cleaned up."""
    deadline = time.monotonic() + 120
    while client.find(batch)["status"] != "cancelled" and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2.0)


def _bodies(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Lines of 4 KB without common beginnings."""
    rng = Random(seed)
    words = ["the", "batch", "of", "requests", "engine", "worker", "and", "is", "sent", "to", "model", "tokens", "when"]
    text = " ".join(rng.choices(words, k=40_000))
    frame = len('{"custom_id": "00000", "method": "POST", "url": "", "body": }') + len(_ENDPOINT) + 110
    for i in range(count):
        at = rng.randrange(len(text) - _LINE)
        content = f"{i} {text[at : at + _LINE - frame]}"
        yield {"model": "mock", "max_tokens": rng.randint(1, 4), "messages": [{"role": "user", "content": content}]}
