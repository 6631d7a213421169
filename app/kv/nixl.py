"""One NIXL agent: a region of this process's host memory that other agents read and write, and theirs.

NIXL's own progress thread spins and takes a whole core, so there is none here: `_pump` makes progress, often while
something is expected, seldom otherwise. A transfer that the CPU copies is copied inside the call that posts it: short
ones are posted piece by piece, and the event loop runs in between; long ones from a thread, whose waking up costs
more than a short one takes.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from app.errors import HandoffFailed, SettingsError

_PIECE = 4 * 2**20  # bytes whose copying may hold the event loop: about half a millisecond
_SHORT = 8 * _PIECE  # a longer transfer has the time to wake a thread
_SPIN_S = 3e-4  # a transfer is looked at this long without a pause
_LIVELY_S, _IDLE_S = 0.0005, 0.02  # between two looks at what has come
_LINGER_S = 0.5  # what was sent needs looks to get out


class Nixl:
    """Belongs to the event loop that calls `start`. Errors of a peer are HandoffFailed, and the peer is forgotten."""

    def __init__(self, name: str, on_note: Callable[[bytes], None]) -> None:
        """`name` is one life of this agent; `on_note` gets what others send."""
        self.name = name
        self.metadata = b""  # what others need to reach it, set by `start`
        self.expecting = 0  # things that others are to tell soon
        self._on_note = on_note
        self._api = _load()
        self._errors = tuple(v for k, v in vars(self._api.nixlBind).items() if k.startswith("nixl") and "Error" in k)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nixl")
        self._in_thread = 0  # calls
        self._peers: dict[str, bool] = {}  # is it connected?
        self._knowing = asyncio.Lock()
        self._lively_until = 0.0
        self._pumping: asyncio.Task[None] | None = None

    async def start(self, address: int, size: int) -> None:
        """Register the memory (bytes), which must outlive `close`. Raises: SettingsError."""
        try:
            strict = self._api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT  # a release may meet a call in the thread
            config = self._api.nixl_agent_config(backends=["UCX"], enable_prog_thread=False, sync_mode=strict)
            self._agent = await self._in(self._api.nixl_agent, self.name, config)
            self._registered = await self._in(self._agent.register_memory, [(address, size, 0, "")], "DRAM")
            self.metadata = self._agent.get_agent_metadata()
        except self._errors as exc:
            raise SettingsError(f"NIXL can't serve {size} bytes of memory: {exc}") from exc
        self._pumping = asyncio.create_task(self._pump(), name="nixl-pump")

    async def know(self, name: str, metadata: bytes) -> None:
        """Make `name` reachable. Raises: HandoffFailed (also: the metadata is that of another life)."""
        async with self._knowing:  # two that know the same peer at once would undo each other
            if name in self._peers:
                return
            with self._mapped(name):
                found = (await self._in(self._agent.add_remote_agent, metadata)).decode()
                if found != name:
                    if found not in self._peers:
                        self._agent.remove_remote_agent(found)
                    raise HandoffFailed(f"{found} is not the {name} that was promised.")
                self._peers[name] = False

    def forget(self, name: str) -> None:
        """Disconnect. What was in flight to or from it ends."""
        if self._peers.pop(name, None) is not None:
            with contextlib.suppress(*self._errors):
                self._agent.remove_remote_agent(name)

    async def move(
        self, op: Literal["READ", "WRITE"], peer: str, pairs: Sequence[tuple[int, int]], size: int, note: bytes, *,
        timeout_s: float,
    ) -> None:  # fmt: skip
        """Move blocks of `size` bytes between own and peer's addresses; `note` tells the peer when they are there.

        Returns or raises when the memory is quiet: a caller that is cancelled waits for that. Raises: HandoffFailed.
        """
        moving = asyncio.create_task(self._move(op, peer, merged(pairs, size), note, timeout_s))
        try:
            await asyncio.shield(moving)
        except asyncio.CancelledError:
            while not moving.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([moving])
            moving.exception()
            raise

    async def tell(self, peer: str, note: bytes) -> None:
        """Raises: HandoffFailed when the peer is known to be gone."""
        with self._mapped(peer):
            await self._in(self._agent.send_notif, peer, note, brief=self._peers.get(peer, False))
        self._lively_until = asyncio.get_running_loop().time() + _LINGER_S

    async def close(self) -> None:
        """Release everything. No transfer may be under way."""
        if self._pumping is not None:
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)
            self._pumping = None
            for name in list(self._peers):
                self.forget(name)
            with contextlib.suppress(*self._errors):
                await self._in(self._agent.deregister_memory, self._registered)
            del self._agent
        self._thread.shutdown()

    async def _move(self, op: str, peer: str, spans: list[tuple[int, int, int]], note: bytes, timeout_s: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_s
        short = self._peers.get(peer, False) and sum(size for _, _, size in spans) <= _SHORT
        parts = list(pieces(spans, _PIECE)) if short else [spans]
        with self._mapped(peer):
            for part in parts:
                # A READ's note goes by itself: within the transfer it would wait for the peer's next look at what came.
                inside = note if op == "WRITE" and part is parts[-1] else b""
                await self._post(op, peer, part, inside, until, brief=short)
                if part is not parts[-1]:
                    await asyncio.sleep(0)
        self._peers[peer] = True
        if op == "READ":
            with contextlib.suppress(HandoffFailed):  # the peer is gone, and its KV is here
                await self.tell(peer, note)
        self._lively_until = clock() + _LINGER_S

    async def _post(
        self, op: str, peer: str, spans: list[tuple[int, int, int]], note: bytes, until: float, *, brief: bool
    ) -> None:
        """To its end. Raises: HandoffFailed, and the agent's own errors."""
        agent, clock = self._agent, asyncio.get_running_loop().time
        own = agent.get_xfer_descs([(here, size, 0) for here, _, size in spans], "DRAM")
        others = agent.get_xfer_descs([(there, size, 0) for _, there, size in spans], "DRAM")
        handle = await self._in(agent.initialize_xfer, op, own, others, peer, note, brief=self._peers.get(peer, False))
        try:
            state = await self._in(agent.transfer, handle, brief=brief)
            began = clock()
            while state == "PROC":
                now = clock()
                if now > until:
                    raise HandoffFailed(f"{peer} did not answer a {op} in time.")
                await asyncio.sleep(0 if now - began < _SPIN_S else min((now - began) / 8, 1e-3))
                state = await self._in(agent.check_xfer_state, handle, brief=True)
            if state != "DONE":
                raise HandoffFailed(f"A {op} with {peer} broke off.")
        finally:
            with contextlib.suppress(*self._errors):  # then the agent keeps it, and `forget` ends it
                handle.release()

    async def _in(self, call: Callable[..., Any], *args: Any, brief: bool = False) -> Any:
        """Call in the agent's thread; here at once when it is brief and nothing runs there."""
        if brief and not self._in_thread:
            return call(*args)
        self._in_thread += 1
        running = asyncio.get_running_loop().run_in_executor(self._thread, call, *args)
        running.add_done_callback(self._returned)
        return await asyncio.shield(running)

    def _returned(self, running: asyncio.Future[Any]) -> None:
        self._in_thread -= 1
        running.exception()  # whoever asked may be gone

    @contextlib.contextmanager
    def _mapped(self, peer: str) -> Iterator[None]:
        try:
            yield
        except HandoffFailed:
            self.forget(peer)
            raise
        except self._errors as exc:
            self.forget(peer)
            raise HandoffFailed(f"{peer} can't be reached: {exc}") from exc

    async def _pump(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            if not self._in_thread:
                with contextlib.suppress(*self._errors):  # of a peer, that its own transfers hear of
                    for notes in self._agent.get_new_notifs().values():
                        for note in notes:
                            self._on_note(note)
            lively = self.expecting or clock() < self._lively_until
            await asyncio.sleep(_LIVELY_S if lively else _IDLE_S)


def merged(pairs: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int, int]]:
    """Spans (own address, other's address, bytes): neighbours on both sides become one."""
    spans: list[tuple[int, int, int]] = []
    for here, there in sorted(pairs):
        if spans and spans[-1][0] + spans[-1][2] == here and spans[-1][1] + spans[-1][2] == there:
            spans[-1] = (*spans[-1][:2], spans[-1][2] + size)
        else:
            spans.append((here, there, size))
    return spans


def pieces(spans: Sequence[tuple[int, int, int]], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """The same spans in parts of at most so many bytes; a longer span is cut."""
    part: list[tuple[int, int, int]] = []
    room = most
    for here, there, size in spans:
        done = 0
        while done < size:
            take = min(room, size - done)
            part.append((here + done, there + done, take))
            done, room = done + take, room - take
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part


def _load() -> Any:
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # what goes wrong is in the HandoffFailed
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    raise_exceptions = logging.raiseExceptions
    try:
        from nixl import _api
    except ImportError as exc:
        raise SettingsError(f"handoff.nixl needs the package nixl (`pip install xylem-serve[cpu]`): {exc}") from exc
    logging.raiseExceptions = raise_exceptions  # which nixl turns off for the whole process
    return _api
