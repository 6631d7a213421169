"""Samples that are too large for Redis: held by the process that awaits their request, and collected by workers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.dispatch.media import media_store, sample_port
from app.dispatch.media.large_samples import LARGE, LargeSamples
from app.dispatch.media.media_store import MediaStore, Samples
from app.errors import MediaLost, RequestError, Saturated
from app.ids import KeyId, RequestId, TenantId
from app.messages.held import GONE, HeldSamples
from app.messages.media import Media
from app.runner import held_media
from app.runner import media as reading
from app.runner.media import fetch_media
from app.tenants.records import NOBODY, Client, Tenant
from tests.background import until
from tests.integration.test_dispatch import KEYS, job
from tests.stack import free_port

A, B, C, SMALL = "a" * 64, "b" * 64, "c" * 64, "d" * 64
SIZE = 3 * LARGE
DATA = {name: bytes([number]) * SIZE for number, name in enumerate((A, B, C))}
ALICE, BOB, DORA, EMIL = (
    Client(Tenant(TenantId("red")), KeyId(name), name) for name in ("alice", "bob", "dora", "emil")
)
CAROL = Client(Tenant(TenantId("blue")), KeyId("carol"), "carol")


def of(request: str, *names: str, client: Client = NOBODY, waits: bool = False) -> Samples:
    return Samples(RequestId(request), client, {name: DATA.get(name, b"small") for name in names}, 5.0, waits)


@asynccontextmanager
async def storing(
    redis: "Redis", most: int = 2**30, port: int = 0, can_collect: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[MediaStore, LargeSamples]]:
    large = LargeSamples("127.0.0.1", port, can_collect)
    store = MediaStore(redis, KEYS, 0.0, most, 100.0, large=large)
    yield store, large
    await store.close()


async def put(store: MediaStore, samples: Samples) -> HeldSamples:
    offer = await store.put(samples)
    assert offer is not None
    return offer


async def test_a_worker_gets_large_samples_from_their_holder_and_small_ones_from_redis(redis: "Redis") -> None:
    """A worker may ask again: the prompt's worker, the answer's, and the next one if that dies."""
    async with storing(redis) as (store, _):
        offer = await put(store, of("one", A, SMALL, B))
        media = [Media("image", name, ()) for name in (A, SMALL, B, A)]
        for _ in range(2):
            inputs = await fetch_media(redis, KEYS, replace(job(), media=media, held=offer), ("image",))
            assert [bytes(one.data) for one in inputs] == [DATA[A], b"small", DATA[B], DATA[A]]
        assert [await redis.exists(KEYS.media(name)) for name in (A, SMALL, B)] == [0, 1, 0]
        assert await put(store, of("one", A, SMALL, B)) == offer, "put again, it is where it was"


async def test_a_request_without_small_ones_asks_redis_nothing(redis: "Redis") -> None:
    away = Redis(port=1)
    async with storing(away) as (store, _):
        assert await held_media.collect(await put(store, of("one", A)), [A]) == {A: DATA[A]}
        store.release(RequestId("one"))
    await away.aclose()


async def test_samples_are_gone_with_their_request_also_while_they_are_sent(redis: "Redis") -> None:
    data = bytes(64 * LARGE)  # more than the kernel takes from who does not wait
    async with storing(redis) as (store, large):
        offer = await put(store, Samples(RequestId("one"), NOBODY, {A: data}, 5.0))
        with socket.create_connection((offer.host, offer.port)) as slow:
            slow.sendall(offer.token + bytes.fromhex(A))
            await asyncio.to_thread(slow.recv, 1)
            store.release(RequestId("one"))
            assert large.sizes == {}
            with pytest.raises(MediaLost):
                await held_media.collect(offer, [A])
            assert await asyncio.to_thread(_rest, slow) < len(data)


def _rest(sock: socket.socket) -> int:
    """Bytes that come before the connection ends or breaks."""
    count = 0
    with suppress(ConnectionError):
        while piece := sock.recv(2**20):
            count += len(piece)
    return count


async def test_who_has_no_token_gets_nothing(redis: "Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger may not keep connections, of which there are so many."""
    monkeypatch.setattr(sample_port, "_STRANGERS", 2)
    monkeypatch.setattr(sample_port, "_HEAD_S", 0.5)
    async with storing(redis) as (store, _):
        offer = await put(store, of("one", A))
        with pytest.raises(MediaLost):
            await held_media.collect(replace(offer, sizes={B: SIZE}), [B])
        with socket.create_connection((offer.host, offer.port)) as guessing:
            guessing.settimeout(5)
            guessing.sendall(bytes(32))
            assert await asyncio.to_thread(guessing.recv, 9) == GONE
        silent = [socket.create_connection((offer.host, offer.port)) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(OSError, match=r"ended|reset|pipe"):
            await held_media.collect(offer, [A])
        await asyncio.sleep(0.7)
        assert await held_media.collect(offer, [A]) == {A: DATA[A]}, "the silent ones had their time"
        for one in silent:
            one.close()


async def test_a_holder_that_is_gone_or_away_is_asked_a_few_times(
    redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "RETRY_S", 0.05)
    media_job = replace(job(), media=[Media("image", A, ())])
    nobody = HeldSamples("127.0.0.1", free_port(), bytes(32), {A: SIZE})
    with pytest.raises(MediaLost):
        await fetch_media(redis, KEYS, replace(media_job, held=nobody), ("image",))
    async with storing(redis) as (store, _):
        offer = await put(store, of("one", A))
        real, calls = held_media.collect, 0

        async def failing(offer: HeldSamples, names: list[str]) -> dict[str, bytearray]:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise TimeoutError
            return await real(offer, names)

        monkeypatch.setattr(reading, "collect", failing)
        (one,) = await fetch_media(redis, KEYS, replace(media_job, held=offer), ("image",))
        assert one.data == DATA[A]


async def test_a_key_a_tenant_and_all_may_have_so_many_bytes_in_a_process(redis: "Redis") -> None:
    """A quarter, a half and the whole; the same picture counts once for each."""
    async with storing(redis, most=4 * SIZE) as (store, large):
        await store.put(of("a", A, client=ALICE))
        await store.put(of("again", A, client=ALICE))
        with pytest.raises(Saturated, match="of one API key"):
            await store.put(of("more", B, client=ALICE))
        await store.put(of("b", A, client=BOB))
        await store.put(
            of(
                "c",
                B,
                client=BOB._replace(key=KeyId("dora")) if hasattr(BOB, "_replace") else replace(BOB, key=KeyId("dora")),
            )
        )
        with pytest.raises(Saturated, match="of one tenant"):
            await store.put(of("more", C, client=EMIL))
        with pytest.raises(RequestError, match="more than the"):
            await store.put(of("never", A, B, client=CAROL))
        assert large.sizes == {
            "all": 2 * SIZE,
            "tenant:red": 2 * SIZE,
            "key:alice": SIZE,
            "key:bob": SIZE,
            "key:dora": SIZE,
        }
        for request in ("a", "again", "b", "c"):
            store.release(RequestId(request))
        assert large.sizes == {}


async def test_a_line_of_a_batch_waits_for_room(redis: "Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_store, "_ROOM_S", 0.01)
    async with storing(redis, most=SIZE) as (store, _):
        await store.put(of("one", A))
        waiting = asyncio.create_task(put(store, of("two", B, waits=True)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        store.release(RequestId("one"))
        assert await held_media.collect(await waiting, [B]) == {B: DATA[B]}


async def test_a_request_whose_small_ones_find_no_room_holds_no_large_ones(redis: "Redis") -> None:
    async with storing(redis, most=SIZE) as (store, large):
        await redis.hset(KEYS.media_held()[0], "all", SIZE)
        with pytest.raises(Saturated):
            await store.put(of("one", A, SMALL))
        assert large.sizes == {}


async def test_all_are_in_redis_while_a_worker_of_an_older_version_reads_there(redis: "Redis") -> None:
    async with storing(redis, can_collect=lambda: False) as (store, large):
        assert await store.put(of("one", A, SMALL)) is None
        assert await redis.get(KEYS.media(A)) == DATA[A]
        assert large.sizes == {}


async def test_a_port_that_is_taken_is_said(redis: "Redis") -> None:
    """The next request may find it free."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with storing(redis, port=port) as (store, large):
            with pytest.raises(MediaLost, match="has no port"):
                await store.put(of("one", A))
            assert large.sizes == {}
            other.close()
            assert (await put(store, of("one", A))).port == port


async def test_a_process_that_ends_sends_no_more(redis: "Redis") -> None:
    async with storing(redis) as (store, _):
        offer = await put(store, of("one", A))

    def refuses() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((offer.host, offer.port)) != 0

    await until(refuses)
