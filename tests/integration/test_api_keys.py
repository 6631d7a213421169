"""API keys, over a real Redis: what is known of them in the process."""

import hashlib
import secrets
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from app.api.api_keys import ApiKeys, given_key
from app.errors import StoreDown, Unauthorized
from app.keys import Keys
from app.messages.wire import encode
from app.store import Wire, async_client
from app.tenants.records import ApiKey
from tests.background import beside, until, until_not
from tests.stack import free_port

KEYS = Keys("keyring")


def token() -> str:
    return f"xyl-{secrets.token_urlsafe(32)}"


def record(name: str, key: str, rpm: int | None = None, tpm: int | None = None, id_: str = "") -> ApiKey:
    return ApiKey(name, hashlib.sha256(key.encode()).digest(), time.time(), rpm, tpm, id_)


async def store(redis: "Redis", *records: ApiKey) -> None:
    for r in records:
        await redis.hset(KEYS.api_keys(), r.name, encode(r))


def request(key: str | None, path: str = "/v1/chat/completions", scheme: str = "Bearer") -> dict[str, Any]:
    headers = [] if key is None else [(b"authorization", f"{scheme} {key}".encode())]
    return {"type": "http", "path": path, "headers": headers}


async def loaded(wire: Wire) -> ApiKeys:
    ring = ApiKeys(wire, KEYS)
    await ring.refresh()
    return ring


async def test_a_stored_key_opens_and_no_other_one_does(redis: "Redis", wire: Wire) -> None:
    """No key opens if it is missing, of another scheme, or the digest itself, which is all that Redis has."""
    alice, bob = token(), token()
    await store(redis, record("alice", alice), record("bob", bob))
    ring = await loaded(wire)
    for key in (alice, bob, f" {alice} "):
        ring.check(request(key))
    ring.check(request(alice, scheme="bearer"))
    digest = hashlib.sha256(alice.encode()).digest()
    for wrong in (None, "", "none", alice[:-1], alice + "x", token(), digest.hex(), digest.decode("latin-1")):
        with pytest.raises(Unauthorized):
            ring.check(request(wrong))
    with pytest.raises(Unauthorized):
        ring.check(request(alice, scheme="Basic"))


async def test_an_owner_is_the_keys_id_or_the_name_of_a_key_without_one(redis: "Redis", wire: Wire) -> None:
    """Keys of before have no id in their records; what they own stays theirs."""
    old, new = token(), token()
    r = record("alice", old)
    await redis.hset(KEYS.api_keys(), "alice", encode([r.name, r.digest, r.created, None, 7]))
    await store(redis, record("bob", new, id_="key_1"))
    ring = await loaded(wire)
    owners = []
    for key in (old, new):
        scope = request(key)
        ring.check(scope)
        owners.append(ring.owner(scope))
    assert owners == ["alice", "key_1"]
    assert ring.owner(request(None)) == ""


@pytest.mark.parametrize(("headers", "found"), [
    ([], b""),
    ([(b"authorization", b"Bearer a")], b"a"),
    ([(b"x-api-key", b" a ")], b"a"),
    ([(b"api-key", b"a")], b"a"),
    ([(b"api-key", b"c"), (b"x-api-key", b"b"), (b"authorization", b"bearer a")], b"a"),
    ([(b"api-key", b"c"), (b"x-api-key", b"b"), (b"authorization", b"Basic a")], b"b"),
    ([(b"api-key", b"c"), (b"x-api-key", b""), (b"authorization", b"Bearer ")], b"c"),
    ([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")], b"a"),
    ([(b"authorization", b"a"), (b"cookie", b"api-key=a")], b""),
])  # fmt: skip
def test_the_first_header_with_a_key_counts(headers: list[tuple[bytes, bytes]], found: bytes) -> None:
    """Bearer, x-api-key, api-key; an empty one is none."""
    assert given_key({"headers": headers}) == found


async def test_a_digest_with_the_same_first_bytes_is_another_key(redis: "Redis", wire: Wire) -> None:
    """The whole of it is compared."""
    key = token()
    digest = hashlib.sha256(key.encode()).digest()
    await store(redis, ApiKey("mallory", digest[:-1] + bytes([digest[-1] ^ 1]), time.time()))
    ring = await loaded(wire)
    with pytest.raises(Unauthorized):
        ring.check(request(key))


@pytest.mark.parametrize("path", [
    "/v1/models", "/v1/completions", "/tokenize", "/detokenize", "/requests/cmpl-1", "//", "//live", "/added/later",
    "/Live", "/liveness", "/v1/../live", "*", "",
])  # fmt: skip
async def test_what_is_not_declared_open_is_closed(redis: "Redis", wire: Wire, path: str) -> None:
    """An endpoint that is added later is closed until somebody decides otherwise."""
    ring = await loaded(wire)
    with pytest.raises(Unauthorized):
        ring.check(request(None, path))


@pytest.mark.parametrize(
    "path", ["/", "/live", "/health", "/ready", "/metrics", "/sd", "/version", "/docs", "/openapi.json"]
)
async def test_what_probes_and_people_look_at_is_open(redis: "Redis", wire: Wire, path: str) -> None:
    """Nothing of prompts and answers is there."""
    ApiKeys(wire, KEYS).check(request(None, path))


async def test_keys_come_and_go_while_the_replica_runs(redis: "Redis", wire: Wire) -> None:
    """Both within two seconds."""
    key, ring = token(), ApiKeys(wire, KEYS)
    async with beside(ring.run()):
        await ring.loaded.wait()

        def valid() -> bool:
            try:
                ring.check(request(key))
            except Unauthorized:
                return False
            return True

        await store(redis, record("alice", key))
        await until(valid)
        await redis.hdel(KEYS.api_keys(), "alice")
        await until_not(valid)


async def test_an_unreadable_key_record_locks_out_no_other_key(redis: "Redis", wire: Wire) -> None:
    """Another version's, say."""
    key = token()
    await store(redis, record("alice", key))
    await redis.hset(KEYS.api_keys(), "bob", b"\x00nonsense")
    ring = await loaded(wire)
    ring.check(request(key))


async def test_without_redis_a_key_is_neither_good_nor_bad_until_keys_were_read_once(store_url: str) -> None:
    """A client that is told 401 throws its key away; 503 it tries again. What was known stays known."""
    away = async_client(f"redis://127.0.0.1:{free_port()}/0")
    ring = ApiKeys(Wire(away), KEYS)
    with pytest.raises(StoreDown):
        await ring.refresh()
    with pytest.raises(StoreDown):
        ring.check(request(token()))
    with pytest.raises(Unauthorized):
        ring.check(request(None))
    await away.aclose()


async def test_what_was_known_stays_known_while_redis_is_away(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of Redis locks nobody out."""
    key = token()
    await store(redis, record("alice", key))
    ring = await loaded(wire)
    away = async_client(f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setattr(ring, "_wire", Wire(away))
    with pytest.raises(StoreDown):
        await ring.refresh()
    ring.check(request(key))
    await away.aclose()
