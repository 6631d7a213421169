"""Streams without an end: what they share, how many there may be, and what they send."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from app.api.http import live_stream
from app.api.http.live_stream import LiveLooks, LiveStream
from app.api.http.uvicorn_protocol import DirectProtocol
from app.errors import RateLimited, Unauthorized

SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/v1/batches", "headers": []}


class Shown:
    """The value that is looked at, and the number of looks."""

    def __init__(self, now: object = "a") -> None:
        self.now, self.looks, self.fifth = now, 0, asyncio.Event()

    async def __call__(self) -> object:
        self.looks += 1
        if self.looks == 5:
            self.fifth.set()
        await asyncio.sleep(0)
        return self.now


class Connection:
    """A client that reads what it is sent, until it leaves."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.left, self.told = asyncio.Event(), asyncio.Condition()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        async with self.told:
            self.sent.append(message)
            self.told.notify_all()

    async def events(self, number: int) -> list[bytes]:
        async with self.told:
            await self.told.wait_for(lambda: len(self._events()) >= number)
        return self._events()

    def _events(self) -> list[bytes]:
        return [body for message in self.sent if (body := message.get("body"))]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_stream, "_EVERY_S", 0.001)
    monkeypatch.setattr(live_stream, "_EARLY_S", 0.0)
    monkeypatch.setattr(DirectProtocol, "stopping", asyncio.Event())  # of this test's event loop


async def test_many_streams_that_show_the_same_look_once() -> None:
    """300 of one key read and wrote a megabyte each, every second: every other tenant waited for them."""
    at, mine, other = 100.0, Shown(), Shown("b")
    looks = LiveLooks(lambda: at)
    with ExitStack() as stack:
        events = [stack.enter_context(looks.opened("me", "list", mine)) for _ in range(20)]
        others = stack.enter_context(looks.opened("me", "another", other))
        for turn in (1, 2):
            results = await asyncio.gather(*(event() for event in events))
            assert set(results) == {b'data: "a"\n\n'}
            assert mine.looks == turn
            at += 1
        assert await others() == b'data: "b"\n\n'


async def test_what_a_client_is_shown_is_looked_at_less_often_the_longer_it_is() -> None:
    """All its streams together: they may show different pages."""
    at, pages = 100.0, [Shown("x" * 2**20) for _ in range(20)]
    looks = LiveLooks(lambda: at)
    with ExitStack() as stack:
        events = [stack.enter_context(looks.opened("me", i, page)) for i, page in enumerate(pages)]
        for at in range(100, 200):  # noqa: B007 (the clock)
            await asyncio.gather(*(event() for event in events))
    assert {30 < page.looks < 60 for page in pages} == {True}


async def test_a_client_has_so_many_streams_at_most() -> None:
    looks, view = LiveLooks(), Shown()
    with ExitStack() as stack:
        for i in range(live_stream._MOST):
            stack.enter_context(looks.opened("me", i % 3, view))
        with pytest.raises(RateLimited, match="Close one") as error:
            await LiveStream(looks, "me", 0, view)(SCOPE, Connection().receive, Connection().send)
        assert error.value.retry_after_s
        with looks.opened("other", 0, view) as event:
            assert await event()
    with looks.opened("me", 0, view):
        pass
    assert not looks._clients


async def test_a_stream_sends_what_has_changed_and_ends_when_its_client_leaves() -> None:
    looks, view, client = LiveLooks(), Shown(), Connection()
    stream = asyncio.create_task(LiveStream(looks, "me", "list", view)(SCOPE, client.receive, client.send))
    await client.events(1)
    await view.fifth.wait()
    view.now = "b"
    assert await client.events(2) == [b'data: "a"\n\n', b'data: "b"\n\n']
    client.left.set()
    await stream
    assert len(await client.events(2)) == 2
    assert not looks._clients


async def test_a_stream_ends_by_itself_when_the_server_stops() -> None:
    """Its response is whole: a cut one is an error to its client."""
    looks, view, client = LiveLooks(), Shown(), Connection()
    stream = asyncio.create_task(LiveStream(looks, "me", "list", view)(SCOPE, client.receive, client.send))
    await client.events(1)
    DirectProtocol.stopping.set()
    await stream
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not looks._clients


async def test_a_silent_stream_has_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveStream, "ping_s", 0.01)
    looks, view, client = LiveLooks(), Shown(), Connection()
    stream = asyncio.create_task(LiveStream(looks, "me", "list", view)(SCOPE, client.receive, client.send))
    assert (await client.events(3))[:3] == [b'data: "a"\n\n', b": waiting\n\n", b": waiting\n\n"]
    client.left.set()
    await stream


async def test_a_stream_that_may_not_go_on_ends_and_not_those_that_share_its_look() -> None:
    """Its key may have been revoked. One that never might has a status code."""
    looks, view, mine, other = LiveLooks(), Shown(), Connection(), Connection()
    is_revoked = False

    async def check() -> None:
        if is_revoked:
            raise Unauthorized

    async def run(client: Connection, **more: Any) -> None:
        await LiveStream(looks, "me", "list", view, **more)(SCOPE, client.receive, client.send)

    streams = [asyncio.create_task(run(mine, check=check)), asyncio.create_task(run(other))]
    await asyncio.gather(mine.events(1), other.events(1))
    is_revoked = True
    await streams[0]
    assert b"invalid_api_key" in (await mine.events(2))[-1]
    with pytest.raises(Unauthorized):
        await run(Connection(), check=check)
    view.now = "b"
    await other.events(2)
    other.left.set()
    await streams[1]
    assert not looks._clients
