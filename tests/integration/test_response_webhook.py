"""The webhook of background responses, against a real Redis and a real server."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.resumable.response_webhook import ResponseWebhook
from app.api.resumable.store import Lost, ResumableStore, Unkept
from app.ids import ApiId, RequestId
from app.messages.events import Done, Failed
from app.messages.wire import encode
from app.settings import Settings
from app.store import Wire
from tests.background import beside
from tests.integration.test_resumable import KEYS, kept

R = RequestId("resp_1")


@pytest.fixture
def answers(wire: Wire) -> ResumableStore:
    return ResumableStore(wire, KEYS, ApiId("a"), 30, tells=True)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections, and answers none."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server


async def test_a_webhook_that_does_not_answer_holds_no_thread_that_others_need(
    wire: Wire, answers: ResumableStore, silent: socket.socket
) -> None:
    """Requests are read and rendered in the loop's own threads, of which a small machine has few."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    for number in range(4):
        one = replace(kept(request=f"resp_{number}"), background=True)
        await answers.put(one)
        await answers.cancel(one.id, [Failed(one.id, 0, "cancelled", "It was.")])
    settings = Settings(webhook_url=f"http://127.0.0.1:{silent.getsockname()[1]}/hook")
    silent.setblocking(False)
    async with beside(ResponseWebhook(wire, KEYS, answers, settings).run()), asyncio.timeout(9):  # a call takes 10 s
        calls = [(await asyncio.get_running_loop().sock_accept(silent))[0] for _ in range(4)]
        assert await asyncio.to_thread(lambda: "read") == "read"
    for call in calls:
        call.close()


async def test_a_response_in_the_background_is_told_of_once_however_it_ends(redis: Redis, wire: Wire) -> None:
    """The webhook is not called for what comes after its end.

    Otherwise a client that cancels it again has the webhook called as often as it likes.
    """
    cancel_events, end_batches = [Failed(R, 0, "cancelled", "It was.")], [encode([Done(R, 0)])]

    async def told() -> bool:
        """Takes it, as the webhook does."""
        return bool(await redis.zrem(KEYS.untold(), "0||resp_1"))

    answers = ResumableStore(wire, KEYS, ApiId("a"), 30, tells=True)
    one = replace(kept(request=R), background=True)
    await answers.put(one)
    assert not await told()
    assert await answers.cancel(R, cancel_events)
    assert await told()
    with pytest.raises(Lost):
        await answers.note(one, 0, end_batches, ended=True)  # by the owner, which had not heard of it
    assert not await answers.cancel(R, cancel_events)
    assert not await told()

    ended_well = replace(one, id=RequestId("resp_2"))
    await answers.put(ended_well)
    await answers.note(ended_well, 0, end_batches, ended=True)
    assert await redis.zrem(KEYS.untold(), "0||resp_2")
    await answers.note(ended_well, 0, end_batches, ended=True)  # sent twice
    assert not await answers.cancel(ended_well.id, cancel_events)
    assert not await redis.exists(KEYS.untold())

    full = ResumableStore(wire, KEYS, ApiId("a"), 30, 4096, tells=True)
    too_long = replace(one, id=RequestId("resp_3"), key="other")
    await full.put(too_long)
    with pytest.raises(Unkept):
        await full.note(too_long, 0, [bytes(8192)], ended=False)
    assert await redis.zrem(KEYS.untold(), "0||resp_3")

    in_front = replace(one, id=RequestId("resp_4"), background=False)
    await answers.put(in_front)
    await answers.note(in_front, 0, end_batches, ended=True)
    assert not await redis.exists(KEYS.untold())


async def test_what_is_not_understood_keeps_no_other_response_untold(
    redis: Redis, wire: Wire, answers: ResumableStore, silent: socket.socket
) -> None:
    """Due together, they would be due together again, each minute, for ever."""
    one = replace(kept(request=R), background=True)
    await answers.put(one)
    await answers.cancel(R, [Failed(R, 0, "cancelled", "It was.")])
    await redis.zadd(KEYS.untold(), {"0||resp_2|more": 0, "\x01": 0})
    settings = Settings(webhook_url=f"http://127.0.0.1:{silent.getsockname()[1]}/hook")
    silent.setblocking(False)
    async with beside(ResponseWebhook(wire, KEYS, answers, settings).run()), asyncio.timeout(9):
        (await asyncio.get_running_loop().sock_accept(silent))[0].close()
