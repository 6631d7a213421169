"""The watch over budgets, against a real Redis and a real server."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.operations.budget_metrics import budget_metrics
from app.api.operations.budget_watch import BudgetWatch
from app.ids import ApiId, KeyId, TenantId
from app.messages.wire import encode
from app.settings import Settings
from app.store import Wire
from app.tenants.budget_notices import decode_notice
from app.tenants.directory import Directory
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.rates_and_budgets import period
from app.tenants.records import ApiKey, Tenant
from tests.integration.test_resumable import KEYS


class Receiver:
    """Refuses the first call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.ids: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.calls.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                receiver.ids.append(self.headers["webhook-id"])
                self.send_response(500 if len(receiver.calls) == 1 else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    listener = Receiver()
    yield listener
    listener.server.shutdown()
    listener.server.server_close()


async def spend(redis: Redis, account: str, amount: float) -> None:
    begin = round(period("day", time.time())[0] * 1000)
    await redis.hset(KEYS.budget(account), mapping={"kind": "tokens/day", "from": begin, "spent": amount})


async def test_each_budgets_use_is_in_metrics_and_the_webhook_is_told_once(
    redis: Redis, wire: Wire, receiver: Receiver
) -> None:
    """A call that failed is made again; another replica, which doesn't lead, tells nobody."""
    budget = TenantLimits(budget=Budget(100, "tokens", "day"))
    blue, ci = TenantId("blue"), KeyId("key_ci")
    await redis.hset(KEYS.tenants(), "blue", encode(Tenant(blue, limits=budget)))
    await redis.hset(KEYS.api_keys(), "ci", encode(ApiKey("ci", b"d" * 32, 0.0, id=ci, tenant=blue, more=budget)))
    directory = Directory(wire, KEYS)
    await directory.refresh()
    settings = Settings(webhook_url=receiver.url)
    one, other = (BudgetWatch(wire, KEYS, directory, ApiId(name), settings) for name in ("one", "other"))

    async def look() -> None:
        await one.look()
        await other.look()

    await spend(redis, "tenant/blue", 79)
    await look()
    assert receiver.calls == []
    await spend(redis, "tenant/blue", 85)
    await spend(redis, "key_ci", 20)
    await look()
    assert [call["type"] for call in receiver.calls] == ["budget.nearly_used"]
    await look()
    assert len(receiver.calls) == 1, "it is not due again yet"
    for field, raw in (await redis.hgetall(KEYS.budget_notices())).items():
        await redis.hset(KEYS.budget_notices(), field, encode(replace(decode_notice(raw), due=0.0)))
    await look()
    await look()
    assert [call["type"] for call in receiver.calls] == ["budget.nearly_used"] * 2
    assert receiver.ids[0] == receiver.ids[1]
    data = receiver.calls[1]["data"]
    assert {name: data[name] for name in ("tenant", "key", "share", "spent", "amount", "unit", "per")} == {
        "tenant": "blue", "key": None, "share": 0.85, "spent": 85.0, "amount": 100.0, "unit": "tokens", "per": "day",
    }  # fmt: skip
    await spend(redis, "tenant/blue", 100)
    await spend(redis, "key_ci", 200)
    await look()
    await look()
    assert sorted((call["type"], call["data"]["key"] or "") for call in receiver.calls[2:]) == [
        ("budget.used", ""), ("budget.used", "ci"),
    ]  # fmt: skip
    (family,) = budget_metrics(await redis.get(KEYS.budgets()))
    assert {(s.labels["tenant"], s.labels["key"]): s.value for s in family.samples} == {
        ("blue", ""): 1.0, ("blue", "ci"): 2.0,
    }  # fmt: skip
