"""The webhook of background responses, against a real Redis and a real server."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.resumable.response_webhook import ResponseWebhook
from app.api.resumable.store import ResumableStore
from app.ids import ApiId, RequestId
from app.messages import Done, Failed
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


async def test_cancelling_what_has_ended_tells_the_webhook_nothing_more(
    redis: "Redis", answers: ResumableStore
) -> None:
    """Else a client has it called as often as it likes."""
    await answers.put(replace(kept(request=R), background=True))
    assert await answers.cancel(R, [Failed(R, 0, "cancelled", "It was.")])
    assert await redis.zrange(KEYS.untold(), 0, -1) == [b"0||resp_1"]
    await redis.delete(KEYS.untold())  # it is told
    assert not await answers.cancel(R, [Done(R, 0)])
    assert not await redis.exists(KEYS.untold())
