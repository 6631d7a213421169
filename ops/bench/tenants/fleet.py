"""Two API replicas that require keys, two mock workers, and a key for each tenant."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from app.ids import KeyId, TenantId
from app.keys import Keys
from app.messages.wire import encode
from app.tenants.records import ApiKey, Tenant
from tests.stack import free_port, stack, valkey, wait_until

SEATS, WORKERS, STEP_MS, PREFILL = 16, 2, 100.0, 25_000.0
_SEQUENCE = 0.005  # of a step, that each of its requests adds
_FULL = 1 + SEATS * _SEQUENCE  # a full engine's step, in empty ones
STEP_S = STEP_MS * _FULL / 1000  # of a full engine


def engine_s(prompt_tokens: int, answer_tokens: int, step_ms: float = STEP_MS) -> float:
    """Seconds that a request takes of a full engine. Nothing of these prompts is cached."""
    return prompt_tokens / PREFILL + answer_tokens * step_ms * _FULL / 1000 / SEATS


def _pool(step_ms: float) -> dict[str, Any]:
    args = {"step_ms": step_ms, "step_ms_per_sequence": step_ms * _SEQUENCE, "prefill_tokens_per_s": PREFILL}
    more = {"args": {**args, "total_blocks": 16_384}, "max_running": SEATS, "max_model_len": 16_384}
    return {"model": "mock", "engine": "mock", **more}


@contextmanager
def fleet(directory: Path, weights: Mapping[str, float], step_ms: float = STEP_MS) -> Iterator[list[str]]:
    """The replicas' URLs. Each tenant's key is its name."""
    directory.mkdir(parents=True, exist_ok=True)
    with (
        valkey(directory / "redis") as url,
        stack(
            url, directory, {"decode-pool-a": _pool(step_ms)}, XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="admin"
        ) as s,
    ):
        with Redis.from_url(url) as redis:
            add_tenants(redis, Keys(s.deployment), weights)
        ports = [s.port, free_port()]
        for i, port in enumerate(ports):
            s.api(f"api-{i}", port)
        for i in range(WORKERS):
            s.worker(name=f"worker-{i}")
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for replica in urls:
            s.wait_ready(WORKERS, url=replica)
            wait_until(lambda: _opens(replica, next(iter(weights))), "the keys are known")  # noqa: B023 (called at once)
        yield urls


def add_tenants(redis: "Redis", keys: Keys, weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        tenant = Tenant(TenantId(name), time.time(), weight)
        redis.hset(keys.tenants(), name, encode(tenant))  # type: ignore[arg-type]  # bytes are allowed
        key = ApiKey(name, hashlib.sha256(name.encode()).digest(), time.time(), id=KeyId(name), tenant=tenant.name)
        redis.hset(keys.api_keys(), name, encode(key))  # type: ignore[arg-type]


def _opens(url: str, key: str) -> bool:
    return httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
