"""Erasing: what a key or a tenant has made is gone, from Redis, storages and the store of KV; others' stays."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.ids import TenantId
from app.keys import Keys
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.records import Tenant
from tests.acceptance.test_isolation import LISTS, endpoints
from tests.acceptance.test_security import xylem
from tests.belongings import ADMIN, LINE, PROMPT, Holder, keep_tenant, keyed
from tests.stack import Stack, free_port, stop, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")  # OpenAI's own service ends


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("erasing")


@pytest.fixture(scope="module")
def served(valkey_url: str, place: Path) -> Iterator[Stack]:
    with keyed(valkey_url, place) as s:
        yield s


def traces(s: Stack, place: Path, *needles: str) -> list[str]:
    """Keys in Redis, and files, with any of these in their name or in what they hold; but for the erasures' own.

    And for what stays of a deleted answer: that there was one of the id.
    """
    names = []
    for key in s.redis.scan_iter(f"{s.deployment}:*"):
        if b":kept:" in key and not s.redis.hexists(key, "record"):
            continue
        raw = key + _value(s.redis, key)
        if any(needle.encode() in raw for needle in needles):
            names.append(key.decode())
    for path in place.rglob("*"):
        if path.is_file() and "stack" not in path.parts:
            raw = str(path).encode() + path.read_bytes()
            if any(needle.encode() in raw for needle in needles):
                names.append(str(path.relative_to(place)))
    own = ("keys:owners", "erasures", "keys:api", "batch-totals", "usage", "audit")
    return [name for name in names if not name.endswith(own)]


def no_traces(s: Stack, place: Path, *needles: str) -> None:
    """Within the seconds for which a deleted answer stays for its readers."""
    try:
        wait_until(lambda: not traces(s, place, *needles), "no trace", 15)
    except AssertionError:
        assert traces(s, place, *needles) == []


def _value(redis: Any, key: bytes) -> bytes:
    kind = redis.type(key)
    read = {
        b"string": lambda: [redis.get(key)],
        b"hash": lambda: [x for pair in redis.hgetall(key).items() for x in pair],
        b"list": lambda: redis.lrange(key, 0, -1),
        b"set": lambda: redis.smembers(key),
        b"zset": lambda: redis.zrange(key, 0, -1),
        b"stream": lambda: [x for _, fields in redis.xrange(key) for x in fields.values()],
    }
    return b"\n".join(x for x in read.get(kind, list)() if x is not None)


def erase(s: Stack, of: str, name: str, url: str | None = None, **body: Any) -> dict[str, Any]:
    path = f"{url or s.url}/admin/{of}/{name}/erase"
    answer = httpx.post(path, json={"wait_s": 60, **body}, headers=ADMIN, timeout=90)
    assert answer.status_code == 200, answer.text
    erasure: dict[str, Any] = answer.json()
    return erasure


def test_all_that_a_key_has_made_is_gone_and_anothers_is_not(served: Stack, place: Path) -> None:
    """Nothing in Redis, and no file, has its ids or words; it is no longer valid; its replica has no timelines."""
    leaver, stays = Holder(served, "gone", "both"), Holder(served, "stays", "both")
    words = "A sentence that nobody else says."
    hers, others = leaver.has_everything(), stays.has_everything()
    leaver.chat(words, store=True)
    assert traces(served, place, leaver.id, words)

    erasure = erase(served, "keys", "gone")
    assert erasure["status"] == "done", erasure
    assert erasure["removed"]["keys"] == erasure["removed"]["conversations"] == 1
    assert erasure["removed"]["batches"] == 2  # one in each shape
    assert erasure["removed"]["answers"] == 4  # response, video, two chats
    assert (
        erasure["removed"]["files"] >= 6
    )  # uploads, picture, video, a message batch with its results; the other output, if there is one
    no_traces(served, place, leaver.id, words, *hers.values())
    assert leaver.call("GET", "/v1/models").status_code == 401
    answer = httpx.get(f"{served.url}/requests/{hers['request']}", headers=ADMIN)
    assert answer.status_code == 404
    for method, path in endpoints(served):
        if method == "get":
            assert stays.call("GET", path.format(**others)).status_code == 200, path
    assert all(stays.call("GET", path).json()["data"] for path in LISTS)


def test_erasing_again_finds_nothing_and_an_unknown_name_is_refused(served: Stack) -> None:
    Holder(served, "twice", "both")
    assert erase(served, "keys", "twice")["removed"] == {"keys": 1}
    assert erase(served, "keys", "twice")["status"] == "done"
    for path in ("key", "tenant"):
        answer = httpx.post(f"{served.url}/admin/{path}s/nobody/erase", headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, f"{path}_not_found")
    assert httpx.post(f"{served.url}/admin/keys/twice/erase").status_code == 403


def test_a_tenant_goes_with_its_keys_its_revoked_keys_and_its_kv_in_the_store(served: Stack, place: Path) -> None:
    """The other tenant's KV stays in the store; a new tenant of the name begins with nothing."""
    keep_tenant(served, Tenant(TenantId("acme"), limits=TenantLimits(budget=Budget(1e6))))
    assert httpx.post(
        f"{served.url}/admin/tenants/acme/isolation", json={"isolated": True}, headers=ADMIN
    ).status_code == 200  # fmt: skip
    one, two = Holder(served, "acme-1", "acme"), Holder(served, "acme-2", "acme")
    other = Holder(served, "other", "shared")
    two.openai.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    one.chat(f"Of acme. {PROMPT}")
    other.chat(f"Of another. {PROMPT}")
    blocks = wait_until(lambda: [p for p in (place / "kv").rglob("salt-*/*/*") if p.is_file()], "blocks under the salt")
    assert len(blocks) > 8
    budget = f"{served.deployment}:budget:tenant/acme"
    assert served.redis.exists(budget)
    plain = [p for p in (place / "kv").rglob("*") if p.is_file() and "salt-" not in str(p)]
    assert xylem(served, "keys", "revoke", "acme-2").returncode == 0

    result = xylem(served, "tenants", "erase", "acme", "--yes", "--clear-kv", "--url", served.url, "--key", "sesame")
    assert result.returncode == 0, result.stderr
    assert "1 keys" in result.stderr
    assert "1 files" in result.stderr
    assert not any(path.exists() for path in blocks)
    assert all(path.exists() for path in plain)
    no_traces(served, place, one.id, two.id)
    assert not served.redis.exists(budget)
    assert served.redis.hget(f"{served.deployment}:tenants", "acme") is None
    assert one.call("GET", "/v1/models").status_code == 401

    new = Holder(served, "acme-3", "acme")
    assert new.chat(f"Of acme. {PROMPT}").usage.prompt_tokens_details.cached_tokens == 0
    assert new.call("GET", "/v1/files").json()["data"] == []


def test_an_erasure_goes_on_when_its_replica_dies(served: Stack, place: Path) -> None:
    """Another one finds it in Redis. What was being made then is stopped."""
    holder = Holder(served, "unlucky", "both")
    port = free_port()
    holder.has_everything()
    slow = holder.openai.responses.create(model="mock", input="hi", background=True, max_output_tokens=1500).id
    second = served.api("second", port=port)
    wait_until(lambda: served.ready(f"http://127.0.0.1:{port}"), "the second replica listens")
    start = erase(served, "keys", "unlucky", f"http://127.0.0.1:{port}", wait_s=0)
    assert start["status"] == "running"
    stop(second, signal.SIGKILL)
    end_state = wait_until(lambda: _ended(served, "unlucky"), "the erasure's end", 60)
    assert end_state["removed"]["answers"] >= 4
    no_traces(served, place, holder.id, slow)


def _ended(s: Stack, name: str) -> dict[str, Any] | None:
    erasures = httpx.get(f"{s.url}/admin/erasures", headers=ADMIN).json()["data"]
    return next((one for one in erasures if one["name"] == name and one["status"] == "done"), None)


def test_a_batch_that_runs_is_cancelled_and_leaves_nothing(served: Stack, place: Path) -> None:
    holder = Holder(served, "busy", "both")
    line = LINE.replace(b'"max_tokens": 2', b'"max_tokens": 1000')
    file = holder.openai.files.create(
        file=("in", b"".join(line.replace(b'"1"', b'"%d"' % i) for i in range(40))), purpose="batch"
    )
    batch = holder.openai.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    wait_until(lambda: holder.openai.batches.retrieve(batch.id).status == "in_progress", "the batch runs")
    assert erase(served, "keys", holder.id)["status"] == "done"
    no_traces(served, place, holder.id, batch.id)
    assert not (place / "files" / "batches" / batch.id).exists()


def test_an_erasure_that_kills_replicas_is_given_up_with_a_reason_until_it_is_asked_for_again(served: Stack) -> None:
    """The count is as four replicas leave it that died of the erasure; the others are carried out meanwhile."""
    for name in ("deadly", "harmless"):
        Holder(served, name, "both")
    served.redis.set(Keys(served.deployment).handling("erasure:key:deadly"), 4 * 3)
    erasure = erase(served, "keys", "deadly")
    assert erasure["status"] == "failed"
    assert "API replicas died" in erasure["reason"]
    assert erase(served, "keys", "harmless")["status"] == "done"
    served.redis.hset(Keys(served.deployment).erasures()[0], "key:odd", b"of another version")
    again = erase(served, "keys", "deadly")
    assert (again["status"], again["reason"]) == ("done", None)
    served.redis.hdel(Keys(served.deployment).erasures()[0], "key:odd")
