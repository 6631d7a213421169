"""A deployment with three tenants and a day of usage that is made up, for the guide's picture of the console."""

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.ids import KeyId, RequestId, TenantId
from app.tenants.records import Price
from app.usage.database import UsageDatabase
from app.usage.record import UsageRecord
from tests.stack import Stack, mock_pool, stack, valkey

ADMIN = "admin"
_TENANTS = {
    "research": {"weight": 3.0, "budget": "40000tokens/month"},
    "product": {"weight": 2.0, "parallel": 64},
    "interns": {"weight": 1.0, "requests_per_min": 600, "models": ["chat"]},
}
_PRICES = {"chat": Price(0.5, 0.05, 1.5)}


@contextmanager
def tenants_fleet(directory: Path) -> Iterator[Stack]:
    directory.mkdir(parents=True)
    url = f"sqlite:///{directory}/usage.sqlite"
    database = UsageDatabase(url)
    database.create()
    database.write(list(_day()), _PRICES)
    database.close()
    env = {"XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": ADMIN, "XYLEM_USAGE_URL": url}
    with valkey(directory / "redis") as redis, stack(redis, directory, {"p": mock_pool(model="chat")}, **env) as s:
        s.api()
        s.worker("p")
        s.wait_ready(model="chat")
        with httpx.Client(base_url=s.url, headers={"authorization": f"Bearer {ADMIN}"}) as admin:
            for name, fields in _TENANTS.items():
                admin.put(f"/admin/tenants/{name}", json=fields).raise_for_status()
                api_key = admin.post("/admin/keys", json={"name": f"{name}-ci", "tenant": name}).json()
                body = {"model": "chat", "prompt": "x " * 200, "max_tokens": 200}
                for _ in range(20):
                    httpx.post(f"{s.url}/v1/completions", json=body, headers={"x-api-key": api_key["key"]}, timeout=60)
        yield s


def _day() -> Iterator[UsageRecord]:
    rng, now = random.Random(1), time.time()
    for number in range(2400):
        at = now - rng.random() * 86_400
        busy = 0.5 + 0.5 * math.sin(2 * math.pi * (at % 86_400) / 86_400)
        tenant = rng.choices(list(_TENANTS), (3 + 4 * busy, 2, 1 + busy))[0]
        prompt, answer = rng.randint(200, 2000), rng.randint(20, 400)
        key = f"{tenant}-ci"
        yield UsageRecord(
            RequestId(f"cmpl-{number}"), 0, at, TenantId(tenant), KeyId(key), key, "chat", "generate", "ok", prompt,
            prompt // 3, answer, engine_s=(prompt / 10_000 + answer / 100) * (0.4 + busy),
        )  # fmt: skip
