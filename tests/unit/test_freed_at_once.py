"""Release of a request's objects at its end. With cycles, garbage collection took an eighth of a short request."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from random import Random
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send

from app.api.http.disconnect import until_client_left
from app.api.openai.sse_response import EventStream
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import InFlight
from app.dispatch.observing.timeline import Timelines
from app.dispatch.placing.placement_round import PlacementRound
from app.engines.base import GenerateRequest
from app.engines.mock.choice import MockChoice
from app.engines.mock.engine import MockEngine
from app.errors import NoWorker, XylemError
from app.ids import ApiId, PoolId, RequestId, RunId
from app.messages.events import Delta, Done
from app.messages.job import Sampling
from app.openai.chat_writer import ChatWriter
from app.openai.schemas import ChatRequest
from tests.jobs import POOL, in_flight, job, placing
from tests.leases import candidate
from tests.models import mock, model
from tests.present import present
from tests.unit.test_whole_responses import Connection, post

CHAT = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True})


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("path", ["/", "/asgi"])
async def test_an_answered_request_is_freed_before_its_connection_ends(path: str) -> None:
    connection = Connection()
    await connection.feed(post(path))
    first = weakref.ref(connection.protocol.cycle)
    await connection.feed(post(path))
    assert connection.written.count(b"HTTP/1.1 201") == 2
    assert first() is None


async def test_a_connection_is_freed_when_it_ends() -> None:
    connection = Connection()
    await connection.feed(post("/"))
    protocol, cycle = weakref.ref(connection.protocol), weakref.ref(connection.protocol.cycle)
    connection.protocol.connection_lost(None)
    del connection.protocol
    await asyncio.sleep(0)
    assert (protocol(), cycle()) == (None, None)


class Sends:
    """A dispatcher that takes a prompt, and leaves the answer to the test."""

    api, token_redis, timelines = ApiId("0a1b2c3d"), 0, Timelines()
    recorder = traffic = usage = hook = None
    answering: "weakref.ref[Generation]"

    async def send(self, inflight: InFlight) -> None:
        self.request = inflight.job.request

    async def cancel(self, _requests: list[RequestId]) -> None:
        pass

    def spent(self, *_ended: object) -> None:
        pass


def plan() -> GenerationPlan:
    return GenerationPlan("chatcmpl-", model(), [[1, 2, 3]], [Sampling(9)], timeout_s=9)


class Streams(Connection):
    """A connection whose requests are answered by a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Sends()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await EventStream(self._begin, lambda call: ChatWriter(call, CHAT))(scope, receive, send)

    async def _begin(self) -> Generation:
        call = Generation(plan(), dispatcher=cast(Dispatcher, cast(Any, self.dispatcher)))
        self.dispatcher.answering = weakref.ref(call)
        return call


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_streamed_answer_is_freed_when_it_ends() -> None:
    """An answer is freed too whose tokens were written without waking its reader."""
    connection = Streams()
    await connection.feed(post("/"))
    answering, request = connection.dispatcher.answering, connection.dispatcher.request
    for i in range(3):
        call = present(answering())
        call.answer.push(Delta(request, 0, f" {i}", [i]))
        await turns()
    call.answer.push(Done(request, 0))
    del call
    await turns()
    assert b'" 2"' in connection.written
    assert connection.written.endswith(b"0\r\n\r\n")
    assert answering() is None


async def test_an_answer_whose_client_leaves_is_freed_when_it_ends() -> None:
    connection = Streams()
    await connection.feed(post("/"))
    answering, request = connection.dispatcher.answering, connection.dispatcher.request
    call = present(answering())
    call.answer.push(Delta(request, 0, " 0", [0]))
    await turns()
    cycle = weakref.ref(connection.protocol.cycle)
    connection.closed = True
    connection.protocol.connection_lost(None)
    call.answer.push(Done(request, 0))
    del call
    await turns()
    assert (answering(), cycle()) == (None, None)


async def test_an_answer_that_watched_for_its_client_is_freed_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer that takes longer than a moment watches for its client."""
    monkeypatch.setattr("app.dispatch.answering.generation._WATCH_AFTER_S", 0)
    watching = asyncio.Event()

    async def never_left() -> None:
        watching.set()
        await asyncio.Event().wait()

    call = Generation(plan(), dispatcher=cast(Dispatcher, cast(Any, Sends())), client_left=never_left)
    async with call:
        await watching.wait()
    reference = weakref.ref(call)
    del call
    await turns()
    assert reference() is None


class Held:
    """Something that a request has."""


async def test_an_error_is_freed_with_what_it_refers_to() -> None:
    """The error refers to the frames that it has passed, and these to the tasks whose error it is."""

    async def fails(held: Held) -> None:
        raise XylemError(f"{held} is not freed")

    async def refused(held: Held) -> None:
        with pytest.raises(XylemError):
            await until_client_left(fails(held), asyncio.Event().wait)

    thing = Held()
    await refused(thing)
    reference = weakref.ref(thing)
    del thing
    await turns()
    assert reference() is None


@pytest.mark.parametrize("prefill", [None, POOL])
async def test_a_round_is_freed_though_it_refused(prefill: PoolId | None) -> None:
    """A full fleet refuses in each round, of which each has read what all workers told."""
    request = in_flight(job(), prefill=prefill)

    def refused() -> "weakref.ref[PlacementRound]":
        round_ = placing([request], {POOL: mock()}, {POOL: [candidate(computes=not prefill, draining=True)]})
        with pytest.raises(NoWorker):
            round_.decide(request, Random(1), 0)
        return weakref.ref(round_)

    assert refused()() is None


def choices() -> int:
    return sum(type(one) is MockChoice for one in gc.get_objects())


async def test_what_a_mock_engine_computed_is_freed_when_its_client_leaves() -> None:
    gc.collect()
    before, sampling = choices(), Sampling(max_tokens=50, n=3, ignore_eos=True)
    engine = MockEngine(mock(args={"kv_events": None}))
    await engine.start()
    answer = engine.generate(GenerateRequest(RunId("a"), [300] * 20, sampling))
    await anext(answer)
    assert choices() == before + 3
    await answer.aclose()
    for _ in range(200):
        if choices() <= before + 1:  # the engine's last step has one of them
            break
        await asyncio.sleep(0.01)
    assert choices() <= before + 1
    await engine.close()
