"""Emitter → Redis → inbox: every event once and in order, whatever pub/sub loses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.dispatch.answering.token_inbox import TokenInbox
from app.dispatch.runtime import Deployment, running
from app.ids import ApiId, PoolId, RequestId, RunId, WorkerId
from app.keys import Keys
from app.messages.events import Delta, Done, Event, EventBatch, Failed, decode_event_batch
from app.messages.job import Job, Sampling, Stage
from app.messages.wire import encode
from app.runner.token_emitter import TokenEmitter
from app.runner.token_emitters import TokenEmitters
from app.settings import Settings
from app.store import Wire, async_client
from tests.background import beside, until, until_not

pytestmark = pytest.mark.both_servers

KEYS, API, WORKER = Keys("test"), ApiId("api1"), WorkerId("w1")


def token(i: int, request: str = "r") -> Delta:
    return Delta(RequestId(request), 0, f" {i}", [i])


class Seen:
    """The events that an inbox delivered."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lost: list[WorkerId] = []

    def deliver(self, *events: Event) -> None:
        self.events.extend(events)

    def tokens(self, request: str = "") -> list[int]:
        """The tokens of one request, or of all."""
        return [t for e in self.events if isinstance(e, Delta) and request in ("", e.request) for t in e.tokens]

    def requests(self) -> list[str]:
        return [e.request for e in self.events]

    async def got(self, request: str, tokens: int) -> None:
        await until(lambda: len(self.tokens(request)) >= tokens)

    async def count(self, n: int, timeout_s: float = 5) -> None:
        await until(lambda: len(self.events) >= n, timeout_s)


@asynccontextmanager
async def inbox(wire: Wire) -> AsyncIterator[Seen]:
    deliveries = Seen()
    box = TokenInbox(wire, KEYS, API, deliveries.deliver, deliveries.lost.append)
    async with beside(box.run()):
        await asyncio.wait_for(box.subscribed.wait(), 5)
        yield deliveries


@asynccontextmanager
async def emitter(
    redis: "Redis", worker: WorkerId = WORKER, settings: Settings | None = None
) -> AsyncIterator[TokenEmitter]:
    wire = Wire(redis)
    e = TokenEmitter(wire, KEYS, worker, PoolId("pool"), settings or Settings())
    async with beside(e.run()):
        yield e
    wire.close()


async def emitted(e: TokenEmitter, event: Event) -> None:
    e.emit(API, event)
    await e.drained()


async def step(redis: "Redis", seq: int, *, publish: bool, worker: WorkerId = WORKER) -> None:
    """Message `seq` with token `seq`; unpublished, it stands in the stream only, as if pub/sub had lost it."""
    data = encode(EventBatch(worker, seq, [token(seq, worker)]))
    await redis.xadd(KEYS.out(API), {"s": data})
    if publish:
        await redis.publish(KEYS.out(API), data)


async def test_tokens_of_one_engine_step_leave_as_one_message(redis: "Redis", wire: Wire) -> None:
    """The cost of a message is shared by all requests of the step."""
    async with inbox(wire) as deliveries, emitter(redis) as e:
        for r in range(50):
            e.emit(API, token(r, f"r{r}"))
        await e.drained()
        await deliveries.count(50)
    entries = await redis.xrange(KEYS.out(API))
    assert len(entries) == 1
    assert decode_event_batch(entries[0][1][b"s"]).seq == 1


async def test_each_api_replica_gets_its_own_tokens_only(redis: "Redis", wire: Wire) -> None:
    """A replica does not pay for what others await."""
    async with emitter(redis) as e:
        e.emit(API, token(1))
        e.emit(ApiId("api2"), token(2))
        await e.drained()
    for api, tokens in ((API, [1]), (ApiId("api2"), [2])):
        entries = await redis.xrange(KEYS.out(api))
        assert [ev.tokens for ev in decode_event_batch(entries[0][1][b"s"]).events] == [tokens]


async def test_tokens_arrive_once_and_in_order(redis: "Redis", wire: Wire) -> None:
    """Two workers, thousands of tokens, one inbox."""
    async with (
        inbox(wire) as deliveries,
        emitter(redis) as one,
        emitter(redis, WorkerId("w2")) as two,
    ):
        for i in range(1000):
            one.emit(API, token(i, "a"))
            two.emit(API, token(i, "b"))
            if i % 7 == 0:
                await asyncio.sleep(0)
        for request in ("a", "b"):
            await deliveries.got(request, 1000)
    for request in ("a", "b"):
        assert deliveries.tokens(request) == list(range(1000))
    assert not deliveries.lost


async def test_steps_that_wait_to_be_sent_become_one_delta_of_each_choice(redis: "Redis", wire: Wire) -> None:
    """An API process that is behind pays for what it reads, not for how often the engine has stepped."""
    a, b = RequestId("a"), RequestId("b")
    async with emitter(redis) as e:
        for i in range(3):
            e.emit(API, token(i, a))
            e.emit(API, replace(token(i, b), index=i % 2))
        await emitted(e, Done(a, 0))
    ((_, fields),) = await redis.xrange(KEYS.out(API))
    assert decode_event_batch(fields[b"s"]).events == [
        Delta(a, 0, " 0 1 2", [0, 1, 2]),
        Delta(b, 0, " 0 2", [0, 2]),
        Delta(b, 0, " 1", [1], 1),
        Done(a, 0),
    ]


async def test_a_gap_is_filled_from_the_stream_before_what_follows(redis: "Redis", wire: Wire) -> None:
    """Pub/sub is fire-and-forget; the stream behind it is not."""
    async with inbox(wire) as deliveries:
        await step(redis, 1, publish=True)
        await deliveries.count(1)
        for seq in (2, 3, 4):
            await step(redis, seq, publish=False)
        await step(redis, 5, publish=True)
        await deliveries.count(5)
    assert deliveries.tokens() == [1, 2, 3, 4, 5]


async def test_a_lost_last_message_is_found_when_nothing_follows(redis: "Redis", wire: Wire) -> None:
    """No later message shows that the terminal one is missing, so silence makes the inbox look."""
    async with inbox(wire) as deliveries:
        await step(redis, 1, publish=True)
        await step(redis, 2, publish=False)
        await deliveries.count(2, timeout_s=3)
    assert deliveries.tokens() == [1, 2]


async def test_a_lost_last_message_is_found_behind_those_of_other_workers(redis: "Redis", wire: Wire) -> None:
    """The newest entry of the stream may have been seen, which says nothing of those before it."""
    other = WorkerId("w2")
    async with inbox(wire) as deliveries:
        await step(redis, 1, publish=True)
        await step(redis, 2, publish=False)
        await step(redis, 1, publish=True, worker=other)
        await deliveries.count(3, timeout_s=4)
    assert sorted(deliveries.tokens()) == [1, 1, 2]
    assert not deliveries.lost


async def test_a_gap_longer_than_one_page_is_filled(redis: "Redis", wire: Wire) -> None:
    """Half a minute without a connection is thousands of messages."""
    async with inbox(wire) as deliveries:
        await step(redis, 1, publish=True)
        for seq in range(2, 900):
            await step(redis, seq, publish=False)
            if seq % 100 == 0:  # another worker, whose messages all come
                await step(redis, seq // 100, publish=True, worker=WorkerId("w2"))
        await step(redis, 900, publish=True)
        await deliveries.count(908)
    assert [t for t, w in zip(deliveries.tokens(), deliveries.requests(), strict=True) if w == WORKER] == list(
        range(1, 901)
    )
    assert not deliveries.lost


async def test_a_message_sent_twice_is_delivered_once(redis: "Redis", wire: Wire) -> None:
    """The emitter repeats a pipeline whose answer it did not get."""
    async with inbox(wire) as deliveries:
        for seq in (1, 1, 2, 2, 1):
            await step(redis, seq, publish=True)
        await deliveries.count(2)
        await asyncio.sleep(0.1)
    assert deliveries.tokens() == [1, 2]


async def test_events_that_cannot_be_sent_are_a_gap_and_hold_up_nothing(redis: "Redis", wire: Wire) -> None:
    """Replicas hear that something was lost, and ask elsewhere for it; releases that were to go with it still go."""
    reservations = KEYS.reservations(WORKER)
    await redis.hset(reservations, "r.0", "1,1,1,1,api1")  # type: ignore[misc]
    async with inbox(wire) as deliveries, emitter(redis) as e:
        e.emit(API, token(1))
        await deliveries.count(1)
        e.emit(API, object())  # type: ignore[arg-type]  # no message
        e.release(RunId("r.0"))
        await asyncio.sleep(0.05)
        e.emit(API, token(2))
        await deliveries.count(2)
        await asyncio.wait_for(e.drained(), 5)
    assert deliveries.tokens() == [1, 2]
    assert deliveries.lost == [WORKER]
    assert not await redis.exists(reservations)


async def test_what_the_stream_has_dropped_is_reported_as_lost(redis: "Redis", wire: Wire) -> None:
    """Requests on that worker must end with an error and not with a hole in their text."""
    async with inbox(wire) as deliveries:
        await step(redis, 1, publish=True)
        await deliveries.count(1)
        await step(redis, 3, publish=True)  # 2 is in neither channel nor stream
        await deliveries.count(2)
    assert deliveries.lost == [WORKER]


async def test_the_inbox_comes_back_after_its_connection_is_cut(redis: "Redis", wire: Wire) -> None:
    """The messages that were sent meanwhile are read from the stream."""
    async with inbox(wire) as deliveries:
        await step(redis, 1, publish=True)
        await deliveries.count(1)
        await redis.client_kill_filter(_type="pubsub")
        await step(redis, 2, publish=True)
        await step(redis, 3, publish=True)
        await deliveries.count(3)
        await asyncio.sleep(1.5)
        await step(redis, 4, publish=True)
        await deliveries.count(4)
    assert deliveries.tokens() == [1, 2, 3, 4]


async def test_a_broken_message_does_not_stop_the_inbox(redis: "Redis", wire: Wire) -> None:
    """Another version's worker may be on the channel, and in the stream."""
    async with inbox(wire) as deliveries:
        await redis.xadd(KEYS.out(API), {"s": b"\xc1 not msgpack"})
        await redis.publish(KEYS.out(API), b"\xc1 not msgpack")
        await step(redis, 1, publish=True)
        await deliveries.count(1)
    assert deliveries.tokens() == [1]


async def forgets(redis: "Redis") -> None:
    """Redis has lost its memory and all connections, as one that was killed and started again."""
    await redis.flushall()
    await redis.client_kill_filter(_type="normal", skipme=True)
    await redis.client_kill_filter(_type="pubsub")


async def test_what_redis_lost_before_a_replica_read_it_is_sent_again(redis: "Redis", wire: Wire) -> None:
    """The last message is sent again even if nothing follows it."""
    async with emitter(redis) as e:
        for number in range(3):
            await emitted(e, token(number))
        await forgets(redis)
        async with inbox(wire) as deliveries:
            await deliveries.count(3)
        assert 0 < await redis.pttl(KEYS.out(API)) <= 60_000
    assert deliveries.tokens() == [0, 1, 2]
    assert not deliveries.lost


async def test_what_redis_lost_is_sent_before_the_message_that_would_show_a_gap(redis: "Redis") -> None:
    async with emitter(redis) as e:
        for number in range(3):
            if number == 2:
                await forgets(redis)
            await emitted(e, token(number))
        entries = await redis.xrange(KEYS.out(API))
    assert [decode_event_batch(fields[b"s"]).seq for _, fields in entries] == [1, 2, 3]


async def test_a_broken_connection_alone_sends_nothing_again(redis: "Redis", wire: Wire) -> None:
    async with emitter(redis) as e:
        for number in range(2):
            await emitted(e, token(number))
            await redis.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(1.2)
    assert await redis.xlen(KEYS.out(API)) == 2


async def test_sent_messages_are_held_for_a_time_and_up_to_a_size(redis: "Redis", wire: Wire) -> None:
    async with emitter(redis) as e:
        for number in range(100):
            await emitted(e, large(number))
        assert 2**19 < e._streams[API].held_bytes <= 2**20
        await until_not(lambda: e._streams[API].held)
        assert e._streams[API].held_bytes == 0


async def test_a_record_stays_until_the_last_event_is_where_the_replica_reads_and_a_reservation_does_not(
    redis: "Redis", wire: Wire
) -> None:
    """The record is for a replica that has not heard of the end yet; a reservation would make the place seem taken."""
    tokens = async_client("redis://127.0.0.1:1/0")  # nobody listens there
    emitters = TokenEmitters([wire, Wire(tokens)], KEYS, WORKER, PoolId("pool"), Settings())
    job = Job(RequestId("r"), 0, API, [1], Sampling(1), 2e9, stages=[Stage("decode", PoolId("pool"), WORKER, 0)])
    for at in (0, 1):
        await redis.set(KEYS.request(job.run), "record")
        await redis.hset(KEYS.reservations(WORKER), job.run, f"1,0,0,0,{API}")
        async with beside(emitters.run()):
            emitters.of(replace(job, token_redis=at)).end(job, Failed(job.request, 0, "code", "message"))
            await asyncio.sleep(0.5)
        assert await redis.exists(KEYS.request(job.run)) == at
        assert not await redis.exists(KEYS.reservations(WORKER))
    await tokens.aclose()


LARGE = "x" * 20_000  # characters of one message
MOST = 2**20  # bytes of the stream


def large(i: int) -> Delta:
    return Delta(RequestId("r"), 0, LARGE, [i])


async def size(redis: "Redis") -> int:
    return int(await redis.memory_usage(KEYS.out(API), samples=0) or 0)


async def test_the_stream_is_bounded_by_the_bytes_of_all_workers(redis: "Redis", wire: Wire) -> None:
    """The size of messages and the number of workers don't matter; what came last stays."""
    settings = Settings(stream_bytes=MOST)
    async with inbox(wire) as deliveries, emitter(redis, settings=settings) as one:
        async with emitter(redis, WorkerId("w2"), settings) as two:
            for i in range(200):
                for e in (one, two):
                    await emitted(e, large(i))
            await deliveries.count(400)
            assert MOST * 3 / 4 < await size(redis) < MOST * 5 / 4
        for i in range(200, 202):  # one goes on alone
            await emitted(one, large(i))
        assert MOST * 3 / 4 < await size(redis) < MOST * 5 / 4
    last = await redis.xrevrange(KEYS.out(API), count=1)
    assert decode_event_batch(last[0][1][b"s"]).seq == 202
    assert await redis.zcard(KEYS.out_marks(API)) < 200
    assert not deliveries.lost


async def test_small_messages_are_bounded_too(redis: "Redis", wire: Wire) -> None:
    settings = Settings(stream_bytes=20_000)
    async with inbox(wire) as deliveries, emitter(redis, settings=settings) as e:
        for i in range(2000):
            await emitted(e, token(i))
        await deliveries.count(2000)
    assert 100 < await redis.xlen(KEYS.out(API)) < 1500


async def test_a_gap_over_more_than_the_stream_keeps_is_reported(redis: "Redis", wire: Wire) -> None:
    """Its requests are computed on elsewhere, and no text has a hole."""
    other = WorkerId("w2")
    async with emitter(redis, settings=Settings(stream_bytes=MOST)) as e:
        await emitted(e, token(0))
        for seq in range(1, 151):  # while nobody listens
            await step(redis, seq, publish=False, worker=other)
        for i in range(200):
            await emitted(e, large(i))
    async with inbox(wire) as deliveries:
        await step(redis, 151, publish=True, worker=other)
        await until(lambda: other in deliveries.lost)
    assert deliveries.tokens()[-1] == 151


async def test_messages_are_kept_for_a_time(redis: "Redis", wire: Wire) -> None:
    """The messages of a replica that is told little, and goes on being told, are kept so too."""
    async with inbox(wire), emitter(redis, settings=Settings(stream_ttl_s=2)) as e, asyncio.timeout(30):
        first = number = 0
        while first <= 5:
            number += 1
            await emitted(e, token(number))
            for _entry, fields in await redis.xrange(KEYS.out(API), count=1):
                first = decode_event_batch(fields[b"s"]).seq
            await asyncio.sleep(0.1)
    assert number - first > 5


@pytest.mark.parametrize("listening", [True, False])
async def test_a_stream_never_stays_for_good(redis: "Redis", wire: Wire, *, listening: bool) -> None:
    """The stream may have expired, its replica may have ended, or Redis may have lost it between two messages."""
    async with AsyncExitStack() as stack:
        e = await stack.enter_async_context(emitter(redis, settings=Settings(stream_ttl_s=2)))
        if listening:
            await stack.enter_async_context(inbox(wire))
        await emitted(e, token(1))
        assert 0 < await redis.pttl(KEYS.out(API)) <= 2000
        while await redis.exists(KEYS.out(API)):
            await asyncio.sleep(0.05)
        await emitted(e, token(2))
        assert 0 < await redis.pttl(KEYS.out(API)) <= 2000
        if not listening:
            await redis.unlink(KEYS.out(API))
            await emitted(e, token(3))
            assert 0 < await redis.pttl(KEYS.out(API)) <= 2000


async def test_a_replica_that_ends_leaves_no_stream(redis: "Redis", store_url: str) -> None:
    deployment = Deployment(Settings(redis_url=store_url, deployment="test"), {}, {})
    async with running(deployment) as core:
        core.inbox._deliver = (deliveries := Seen()).deliver
        async with emitter(redis) as e:
            e.emit(core.dispatcher.api, token(1))
            await deliveries.count(1)
            await e.drained()
        assert await redis.exists(KEYS.out(core.dispatcher.api), KEYS.out_marks(core.dispatcher.api)) == 2
    assert await redis.keys("test:out:*") == []


async def test_a_replica_ends_also_when_a_gap_shows_just_then(redis: "Redis", wire: Wire) -> None:
    box = TokenInbox(wire, KEYS, API, Seen().deliver, lambda _: None)
    task = asyncio.create_task(box.run())
    async with asyncio.timeout(5):
        await box.subscribed.wait()
    await asyncio.sleep(0.1)
    box._attention.set()
    task.cancel()
    await asyncio.wait([task], timeout=1)
    assert task.cancelled()
