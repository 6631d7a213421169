"""Batches of API keys that have limits, on real processes: their lines wait, and nobody else does."""

import re
import time
from typing import Any

import pytest
from openai import OpenAI, RateLimitError

from app.ids import TenantId
from app.messages.wire import encode
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.records import Tenant
from tests.acceptance.test_batch_work import asking, progressed
from tests.acceptance.test_security import create, xylem
from tests.batching import TEXT, ended, results, submitted
from tests.serving import client_of, served_by
from tests.stack import Stack, mock_pool, wait_until

POOL = "decode-pool-a"


# So few seats that there is room for two parts: a batch that held them would be alone.
fleet = served_by(
    {POOL: mock_pool(step_ms=1.0, max_running=4)}, {"worker": POOL, "batch": "batch"}, XYLEM_REQUIRE_KEYS="true"
)


def client(s: Stack, name: str, *limits: str) -> OpenAI:
    return client_of(s.url, api_key=create(s, [s.url], name, *limits))


def asks(count: int) -> list[dict[str, Any]]:
    return [asking(f"id-{i}", TEXT, prompt=f"Number {i}", max_tokens=2) for i in range(count)]


def answered(c: OpenAI, batch: str) -> int:
    counts = c.batches.retrieve(batch).request_counts
    assert counts is not None
    return counts.completed + counts.failed


def test_a_batch_takes_what_its_keys_limit_lets_it_and_others_go_on_beside_it(fleet: Stack) -> None:
    """No line fails for it; half of the limit is left to online requests; who has none does not wait for who has."""
    rpm, lines = 20, 150
    redis = fleet.redis
    with client(fleet, "slow", "--rpm", str(rpm)) as slow, client(fleet, "free") as free:
        began = time.monotonic()
        batch = submitted(slow, asks(lines), TEXT)
        progressed(slow, batch, rpm // 2)
        other = ended(free, submitted(free, asks(130), TEXT))
        assert (other.status, other.request_counts.completed) == ("completed", 130)  # type: ignore[union-attr]
        most = rpm // 2 + 1 + rpm * (time.monotonic() - began) / 60
        assert rpm // 2 <= answered(slow, batch.id) <= most
        online = slow.completions.with_raw_response.create(model="mock", prompt="hello", max_tokens=1)
        assert online.headers["x-ratelimit-limit-requests"] == str(rpm)
    stderr = xylem(fleet, "keys", "revoke", "slow").stderr
    (id_,) = re.findall(r"key_\w+", stderr)
    key = f"batch-limits:batch:{batch.id}"  # it goes on at the same rate; here, a minute passes with each look

    def over() -> bool:
        redis.unlink(f"batch-limits:spent:{id_}")
        return redis.hget(key, "status") == b"completed"

    wait_until(over, "all lines are answered", 120, 0.05)
    assert [redis.hget(key, field) for field in ("completed", "failed")] == [b"%d" % lines, b"0"]


def test_lines_are_charged_to_limits_of_their_own_where_a_key_has_them(fleet: Stack) -> None:
    """Requests online have all of theirs, but for the upload and the batch."""
    with client(fleet, "both", "--rpm", "5", "--batch-rpm", "600") as both:
        batch = ended(both, submitted(both, asks(70), TEXT))
        assert len(results(both, batch)[0]) == 70
        response = both.completions.with_raw_response.create(model="mock", prompt="hello", max_tokens=1)
        assert int(response.headers["x-ratelimit-remaining-requests"]) >= 2
    redis = fleet.redis
    (account,) = redis.keys("batch-limits:spent:*:batch")
    assert float(redis.hget(account, "requests")) < 600  # type: ignore[arg-type]


def test_lines_of_a_tenant_without_budget_wait_for_more_of_it_and_others_go_on(fleet: Stack) -> None:
    """None fails, and what was charged is what the batch says of its usage."""
    redis, lines = fleet.redis, 300

    def give(budget: float) -> None:
        team = Tenant(TenantId("poor"), limits=TenantLimits(budget=Budget(budget)))
        redis.hset("batch-limits:tenants", "poor", encode(team))

    give(1000)  # who knows the key knows its tenant's budget, too
    with client(fleet, "poor", "--tenant", "poor") as poor, client(fleet, "rich") as rich:
        budget = "batch-limits:budget:tenant/poor"
        batch = submitted(poor, asks(lines), TEXT)

        def spent() -> float:
            return float(redis.hget(budget, "spent") or 0)

        wait_until(lambda: spent() >= 1000, "the budget is used up")
        other = ended(rich, submitted(rich, asks(130), TEXT))
        assert (other.status, other.request_counts.completed) == ("completed", 130)  # type: ignore[union-attr]
        assert poor.batches.retrieve(batch.id).status == "in_progress"
        assert 0 < answered(poor, batch.id) < lines
        with pytest.raises(RateLimitError, match="The tenant 'poor' has spent"):
            poor.completions.create(model="mock", prompt="hello", max_tokens=1)
        give(1_000_000)
        whole = ended(poor, batch)
        assert (whole.status, whole.request_counts.completed) == ("completed", lines)  # type: ignore[union-attr]
        usage = whole.usage
        assert usage is not None
        assert spent() == usage.total_tokens
