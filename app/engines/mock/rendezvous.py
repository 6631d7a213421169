"""The rendezvous of two engines at once: the prefill engine listens and computes a prompt; the decode engine, the
visitor, connects and says where to write the KV. A room is one request's rendezvous.

A DEALER sends an Offer, and Gone when it no longer wants the KV; the ROUTER answers `seen`, and then once: `written`,
`refused` or `left`. After one of these, nothing writes into the offered blocks.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import msgspec
import structlog
import zmq
import zmq.asyncio
from msgspec import Struct

from app.engines.mock.args import HandoffArgs
from app.engines.mock.link import KvPlace
from app.errors import EngineFailed, HandoffFailed
from app.messages.handoff import Rendezvous
from app.running.loops import keep

_UNSEEN_S = 0.5  # how long a leaving visitor waits for an engine that has never answered

log = structlog.get_logger(__name__)


class Offer(Struct, frozen=True, tag=True):
    room: int
    place: KvPlace  # the blocks for the prompt's blocks from number `first` on
    first: int
    tokens: int  # of the whole prompt
    seconds: float  # that the offer is valid


class Gone(Struct, frozen=True, tag=True):
    room: int


class MockAnswer(Struct, frozen=True):
    what: Literal["seen", "written", "refused", "left"]
    why: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_visitor = msgspec.msgpack.Decoder[Offer | Gone](Offer | Gone).decode
_decode_answer = msgspec.msgpack.Decoder(MockAnswer).decode


class Meeting:
    """One room, at the prefill engine."""

    def __init__(self, timeout_s: float) -> None:
        self.visitor: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self.address: bytes | None = None  # of the visitor's socket
        self.until = 0.0  # end of the offer's validity, on the loop's clock
        self.entered = False  # a prefill has begun
        self.writing = False
        self.over = ""  # why the meeting has ended
        self._timeout_s = timeout_s

    async def come(self) -> Offer:
        """Wait for the decode engine; its blocks may be written to afterwards. Raises: HandoffFailed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                offer = await asyncio.shield(self.visitor)
        except TimeoutError:
            raise HandoffFailed(f"The decode engine did not connect within {self._timeout_s:g} s.") from None
        if self.over or asyncio.get_running_loop().time() >= self.until:
            raise HandoffFailed("The decode engine has given up.")
        self.writing = True
        return offer


class Rooms:
    """All rooms of one engine, as prefill and as decode engine."""

    def __init__(self, args: HandoffArgs, host: str) -> None:
        """`host`: the address at which others reach this engine."""
        self._args, self._host = args, host
        self.meets_at = ""  # host:port, once it listens
        self._meetings: dict[int, Meeting] = {}
        self._context: zmq.asyncio.Context | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._server: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen, if prompts are handed over at once. Raises: EngineFailed when the host can't be bound."""
        self._context = zmq.asyncio.Context()
        if self._args.shape == "at_once":
            self._router = self._context.socket(zmq.ROUTER)
            try:
                port = self._router.bind_to_random_port(f"tcp://{self._host}")
            except zmq.ZMQError as exc:
                raise EngineFailed(f"Can't listen at {self._host}: {exc.strerror}") from exc
            self.meets_at = f"{self._host}:{port}"
            self._server = asyncio.create_task(keep("rooms_not_served", self._serve, 0), name="mock-rooms")

    def end(self) -> None:
        """Ends the waits for visitors."""
        for meeting in self._meetings.values():
            if not meeting.visitor.done():
                meeting.visitor.set_exception(HandoffFailed("The engine closes."))
                meeting.visitor.exception()  # retrieved, in case nothing awaits it

    async def close(self) -> None:
        if self._server is not None:
            self._server.cancel()
            await asyncio.gather(self._server, return_exceptions=True)
        if self._router is not None:
            self._router.close(linger=0)
        if self._context is not None:
            self._context.term()
        self._server = self._router = self._context = None

    @contextlib.asynccontextmanager
    async def meet(self, room: Rendezvous) -> AsyncIterator[Meeting]:
        """The room of a prompt to compute; tells the decode engine at the end how it went. Raises: HandoffFailed."""
        if self._router is None:
            raise HandoffFailed("This engine has no rendezvous: its args.handoff.shape is in_sequence.")
        meeting = self._meeting(room.room)
        if meeting.over:  # the decode engine has given up
            raise HandoffFailed(meeting.over)
        meeting.entered = True
        try:
            yield meeting
        except BaseException as exc:
            meeting.over = str(exc) if isinstance(exc, HandoffFailed) else "The prompt was not computed."
            await self._answer(meeting.address, MockAnswer("refused", meeting.over))
            raise
        else:
            meeting.over = "Its KV has been written already."
            await self._answer(meeting.address, MockAnswer("written"))
        finally:
            if not meeting.visitor.done():
                meeting.visitor.cancel()
            # Until then, a late decode engine is refused; later it has given up by itself.
            asyncio.get_running_loop().call_later(self._args.timeout_s, self._meetings.pop, room.room, None)

    async def visit(self, room: Rendezvous, offer: Offer, note: asyncio.Future[None] | None) -> None:
        """Offer blocks, and wait until they are written: also for `note`, if the data doesn't come with the answer.

        Returns or raises only when nothing writes there any more. Raises: HandoffFailed.
        """
        with self._dealer(room) as socket:
            was_seen = False
            try:
                async with asyncio.timeout(offer.seconds):
                    await socket.send(_encode(offer))
                    while (answer := _decode_answer(await socket.recv())).what == "seen":
                        was_seen = True
                    if answer.what != "written":
                        raise HandoffFailed(answer.why)
                    if note is not None:
                        await note
            except (TimeoutError, asyncio.CancelledError) as exc:
                await socket.send(_encode(Gone(room.room)))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._args.timeout_s if was_seen else _UNSEEN_S):
                        while _decode_answer(await socket.recv()).what == "seen":
                            pass
                if isinstance(exc, TimeoutError):
                    message = f"The KV did not come from {room.host}:{room.port} within {offer.seconds:g} s."
                    raise HandoffFailed(message) from None
                raise

    async def leave(self, room: Rendezvous) -> None:
        """Tell a prefill engine that its KV isn't wanted, without a visit. Raises: HandoffFailed, TimeoutError."""
        with self._dealer(room) as socket:
            await socket.send(_encode(Gone(room.room)))
            async with asyncio.timeout(_UNSEEN_S):
                await socket.recv()

    @contextlib.contextmanager
    def _dealer(self, room: Rendezvous) -> Iterator[zmq.asyncio.Socket]:
        if self._context is None:
            raise HandoffFailed("The engine is closed.")
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(f"tcp://{room.host}:{room.port}")
            yield socket
        except zmq.ZMQError as exc:
            raise HandoffFailed(f"{room.host}:{room.port} can't be reached: {exc.strerror}") from exc
        except msgspec.DecodeError as exc:
            raise HandoffFailed(f"{room.host}:{room.port} sent an unknown message: {exc}") from exc
        finally:
            socket.close(linger=0)

    def _meeting(self, room: int) -> Meeting:
        return self._meetings.setdefault(room, Meeting(self._args.timeout_s))

    async def _serve(self) -> None:
        assert self._router is not None
        frames = await self._router.recv_multipart()
        try:
            address, payload = frames
            message = _decode_visitor(payload)
        except (ValueError, msgspec.DecodeError) as exc:
            log.warning("visitor refused", action="room_refused", error=str(exc))
            return
        if isinstance(message, Offer):
            await self._offered(address, message)
        else:
            await self._gone(address, message.room)

    async def _offered(self, address: bytes, offer: Offer) -> None:
        loop, meeting = asyncio.get_running_loop(), self._meeting(offer.room)
        if meeting.over or meeting.visitor.done():
            return await self._answer(
                address, MockAnswer("refused", meeting.over or "Another engine has connected already.")
            )
        meeting.address, meeting.until = address, loop.time() + offer.seconds
        meeting.visitor.set_result(offer)
        loop.call_later(offer.seconds, self._forget_empty, offer.room)
        return await self._answer(address, MockAnswer("seen"))

    async def _gone(self, address: bytes, room: int) -> None:
        meeting = self._meeting(room)
        if not meeting.writing or meeting.over:  # else the visitor is told when writing has ended
            meeting.over = meeting.over or "The decode engine has given up."
            if not meeting.visitor.done():
                meeting.visitor.set_exception(HandoffFailed(meeting.over))
                meeting.visitor.exception()  # retrieved, in case nothing awaits it
            asyncio.get_running_loop().call_later(self._args.lease_s, self._forget_empty, room)
            await self._answer(address, MockAnswer("left"))

    def _forget_empty(self, room: int) -> None:
        meeting = self._meetings.get(room)
        if meeting is not None and not meeting.entered:
            del self._meetings[room]

    async def _answer(self, address: bytes | None, answer: MockAnswer) -> None:
        if address is not None and self._router is not None:
            await self._router.send_multipart((address, _encode(answer)))
