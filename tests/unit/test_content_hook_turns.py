"""Turns at the content hook: who waits, for how long, and the answers that are allowed."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest

from app.bounded.turns import CLIENT
from app.dispatch.answering import content_hook
from app.dispatch.answering.content_hook import ContentHook
from app.errors import HookDown
from app.settings import Settings


async def ended(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def serving_hook(serve: Any, **settings: Any) -> AsyncIterator[ContentHook]:
    """A hook that asks this server."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ask"
        yield ContentHook(Settings(hook_url=url, **settings))


async def test_a_client_that_asks_much_has_nobody_wait_and_its_own_turns_take_no_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its calls stood in front of the others', whose time for a call was over before they began."""
    monkeypatch.setattr(content_hook, "_CONNECTIONS", 1)
    order, departures = list[str](), asyncio.Queue[None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                order.append(orjson.loads(await reader.readexactly(length))["who"])
                await asyncio.sleep(0.3)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n" + b'{"allow":true}')
        await ended(writer)
        await departures.put(None)

    async with serving_hook(serve, hook_timeout_s=1.5) as hook:

        async def ask(who: str) -> None:
            CLIENT.set(who)
            await hook.check("prompt", lambda: {"who": who}, {})

        tasks = [asyncio.create_task(ask("red")) for _ in range(6)]
        await asyncio.sleep(0)
        await asyncio.gather(asyncio.create_task(ask("blue")), *tasks)
        await hook.close()
        await departures.get()
    assert sorted(order) == ["blue", *["red"] * 6]
    assert order.index("blue") <= 2


async def test_whoever_leaves_takes_no_connection_along() -> None:
    """httpx may keep one whose call was cancelled: the next calls waited for it until their time was over."""
    serving = list[asyncio.Event]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(over := asyncio.Event())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n" + b'{"allow":true}')
        await ended(writer)
        over.set()

    async with serving_hook(serve, hook_timeout_s=30) as hook:
        for turns in [*range(40)] * 3:  # of the event loop
            task = asyncio.create_task(hook.check("prompt", dict, {}))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(hook.check("prompt", dict, {}) for _ in range(40)))
        await hook.close()
        for over in serving:
            await over.wait()


@pytest.mark.parametrize("encoding", [b"", b"content-encoding: identity\r\n", b"content-encoding: gzip\r\n"])
async def test_a_reply_is_asked_for_as_it_is_and_no_other_is_decompressed(encoding: bytes) -> None:
    """200 KB became 200 MB before they were found to be too many."""
    heads, departure = list[bytes](), asyncio.Event()
    verdict = b'{"allow":true}'
    body = gzip.compress(verdict) if b"gzip" in encoding else verdict

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%s" % (encoding, len(body), body))
        await reader.read()  # until the caller has gone
        await ended(writer)
        departure.set()

    async with serving_hook(serve) as hook:
        if b"gzip" in encoding:
            with pytest.raises(HookDown):
                await hook.check("prompt", dict, {})
        else:
            await hook.check("prompt", dict, {})
        await hook.close()
        await departure.wait()
    assert b"accept-encoding: identity\r\n" in heads[0].lower()
