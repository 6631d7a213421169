"""Moves KV between this process's host memory and that of other processes, with NIXL.

There are two agents. Others know `_agent`: they read and write the memory registered with it, and notes (short
messages) come and go through it. `_mover` transfers to and from the memory of others; it does nothing else, so that
no transfer waits for a note or for the progress thread's lock.

As NIXL's Python interface starts it, NIXL's progress thread spins and takes a whole core. `nixl_api.py` gives it a
pause: then it sleeps until UCX wakes it. `_pump` polls for notes, often while some are expected, seldom otherwise.
A transfer that the CPU copies is copied inside the call that posts it: short ones are posted piece by piece, and the
event loop runs in between; long ones are posted from a thread, whose wake-up takes as long as a short transfer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from app.errors import HandoffFailed, SettingsError
from app.kv.nixl_api import load_nixl
from app.kv.spans import Spans, merged, pieces
from app.running.loops import keep
from app.telemetry import logger

log = logger(__name__)

_PIECE = 8 * 2**20  # bytes copied on the event loop at once: half a millisecond to one
_SHORT = 4 * _PIECE  # bytes; longer transfers are posted from a thread
_SPIN_S = 4e-3  # a transfer is polled without a pause for this long: a pause would delay it by half a pause
# Between two polls for notes. uvloop's timers count whole milliseconds, and round less than half of one to none.
_LIVELY_S, _IDLE_S = 0.001, 0.02
_MOST_PEERS = 256  # each takes some 10 kB, also when its process has ended, of which nobody tells
_LINGER_S = 0.5  # how long to poll often after sending, which makes progress only in polls


class Nixl:
    """Belongs to the event loop that calls `start`. A peer's error raises HandoffFailed, and disconnects the peer."""

    def __init__(self, name: str, on_note: Callable[[bytes], None]) -> None:
        """`name`: unique for each start of this agent. `on_note` gets the notes of others."""
        self.name = name
        self.metadata = b""  # what others need to reach it, set by `start`
        self.expecting = 0  # notes that should come soon
        self._on_note = on_note
        self._api = load_nixl()
        self._errors = tuple(v for k, v in vars(self._api.nixlBind).items() if k.startswith("nixl") and "Error" in k)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nixl")
        self._in_thread = 0  # calls
        # Name → whether a transfer to or from it has succeeded; the last to be used is the last.
        self._peers: dict[str, bool] = {}
        self._told: set[str] = set()  # peers that were sent a note
        self._connecting = asyncio.Lock()
        self._lively_until = 0.0
        self._pumping: asyncio.Task[None] | None = None

    async def start(self, address: int, size: int) -> None:
        """Register the memory (bytes), which must outlive `close`. Raises: SettingsError."""
        try:
            self._agent, self._registered = await self._call(self._make_agent, self.name, address, size)
            self._mover, self._movable = await self._call(self._make_agent, f"{self.name}-mover", address, size)
            self.metadata = self._agent.get_agent_metadata()
        except self._errors as exc:
            raise SettingsError(f"NIXL can't serve {size} bytes of memory: {exc}") from exc
        self._pumping = asyncio.create_task(keep("nixl_not_pumped", self._pump, self._pause), name="nixl-pump")

    def _make_agent(self, name: str, address: int, size: int) -> tuple[Any, Any]:
        """An agent, and its registration of the memory."""
        strict = self._api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT  # calls come from two threads
        config = self._api.nixl_agent_config(backends=["UCX"], enable_prog_thread=name == self.name, sync_mode=strict)
        agent = self._api.nixl_agent(name, config)
        return agent, agent.register_memory([(address, size, 0, "")], "DRAM")

    async def connect(self, name: str, metadata: bytes) -> None:
        """Make the peer `name` reachable. Raises: HandoffFailed, also when the metadata is another peer's.

        With too many peers, disconnects from the one that was not used for longest.
        """
        async with self._connecting:  # two calls for the same peer would undo each other
            if name in self._peers:
                self._peers[name] = self._peers.pop(name)
                return
            if len(self._peers) >= _MOST_PEERS:
                self.disconnect(next(iter(self._peers)))
            with self._mapped(name):
                peer_name = (await self._call(self._mover.add_remote_agent, metadata)).decode()
                if peer_name != name:
                    if peer_name not in self._peers:
                        self._mover.remove_remote_agent(peer_name)
                    raise HandoffFailed(f"Expected the peer {name}, found {peer_name}.")
                await self._call(self._agent.add_remote_agent, metadata)
                self._peers[name] = False

    def disconnect(self, name: str) -> None:
        """Disconnect from a peer. Its transfers end."""
        self._told.discard(name)
        if self._peers.pop(name, None) is not None:
            for agent in (self._mover, self._agent):
                with contextlib.suppress(*self._errors):
                    agent.remove_remote_agent(name)

    async def move(
        self,
        op: Literal["READ", "WRITE"],
        peer: str,
        pairs: Sequence[tuple[int, int]],
        size: int,
        note: bytes,
        *,
        timeout_s: float,
    ) -> None:
        """Move blocks of `size` bytes between pairs of own and peer's addresses; `note` is sent to the peer at the end.

        Returns or raises only when nothing accesses the memory any more, also when cancelled. Raises: HandoffFailed.
        """
        until = asyncio.get_running_loop().time() + timeout_s
        spans, first = merged(pairs, size), None
        short = self._peers.get(peer, False) and not self._in_thread and len(pairs) * size <= _SHORT
        parts = list(pieces(spans, _PIECE)) if short else [spans]
        moving: asyncio.Task[None] | None = None
        try:
            if short:
                with self._mapped(peer):
                    first = await self._copy(op, peer, parts, note)
            if parts:
                moving = asyncio.create_task(self._move(op, peer, parts, note, until, first=first))
                await asyncio.shield(moving)
        except asyncio.CancelledError:  # the peer waits for the note at the end
            moving = moving or asyncio.create_task(self._move(op, peer, parts, note, until, first=None))
            while not moving.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([moving])
            moving.exception()
            raise

    async def tell(self, peer: str, note: bytes) -> None:
        """Send a note. Raises: HandoffFailed when the peer is known to be gone."""
        with self._mapped(peer):
            await self._call(self._agent.send_notif, peer, note, brief=peer in self._told)
            self._told.add(peer)
        self._lively_until = asyncio.get_running_loop().time() + _LINGER_S

    async def close(self) -> None:
        """Release everything. No transfer may be under way."""
        if self._pumping is not None:
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)
            self._pumping = None
            for name in list(self._peers):
                self.disconnect(name)
            for agent, memory in ((self._mover, self._movable), (self._agent, self._registered)):
                with contextlib.suppress(*self._errors):
                    await self._call(agent.deregister_memory, memory)
            del self._agent, self._mover, agent
        self._thread.shutdown()

    async def _copy(self, op: str, peer: str, parts: list[Spans], note: bytes) -> tuple[Any, str] | None:
        """Transfers parts here, with turns of the loop between them, and removes them from `parts`.

        Stops when the thread is busy, or at a part that isn't complete when it is posted: returns its handle and state.
        """
        while not self._in_thread:
            handle, state = self._post(op, peer, parts[0], note if len(parts) == 1 else b"")
            if state != "DONE":
                return handle, state
            del parts[0]
            if not parts:
                self._moved(op, peer, note, handle)
                break
            self._release(handle)
            await asyncio.sleep(0)
        return None

    async def _move(
        self, op: str, peer: str, parts: list[Spans], note: bytes, until: float, first: tuple[Any, str] | None
    ) -> None:
        """Transfers one part after the other; `first`: handle and state of the first part, if it is posted already."""
        clock = asyncio.get_running_loop().time
        with self._mapped(peer):
            for part in parts:
                if first is not None:
                    (handle, state), first = first, None
                else:
                    short, last = len(parts) > 1, part is parts[-1]
                    await asyncio.sleep(0)
                    handle, state = await self._call(self._post, op, peer, part, note if last else b"", brief=short)
                began = clock()
                try:
                    while state == "PROC":
                        now = clock()
                        if now > until:
                            raise HandoffFailed(f"{peer} did not answer a {op} in time.")
                        await asyncio.sleep(0 if now - began < _SPIN_S else _LIVELY_S)
                        state = await self._call(self._mover.check_xfer_state, handle, brief=True)
                    if state != "DONE":
                        raise HandoffFailed(f"A {op} with {peer} failed.")
                except BaseException:
                    self._release(handle)
                    raise
                if part is not parts[-1]:
                    self._release(handle)
            self._moved(op, peer, note, handle)

    def _post(self, op: str, peer: str, spans: Spans, note: bytes) -> tuple[Any, str]:
        """Begin a transfer, which may complete it; a WRITE sends the note at its end. Returns handle and state."""
        agent = self._mover
        own = agent.get_xfer_descs([(here, size, 0) for here, _, size in spans], "DRAM")
        others = agent.get_xfer_descs([(there, size, 0) for _, there, size in spans], "DRAM")
        handle = agent.initialize_xfer(op, own, others, peer, note if op == "WRITE" else b"")
        try:
            return handle, agent.transfer(handle)
        except BaseException:
            self._release(handle)
            raise

    def _moved(self, op: str, peer: str, note: bytes, handle: Any) -> None:
        loop = asyncio.get_running_loop()
        self._peers[peer] = True
        self._lively_until = loop.time() + _LINGER_S
        loop.call_soon(self._after, op, peer, note, handle)

    def _after(self, op: str, peer: str, note: bytes, handle: Any) -> None:
        """Cleans up after a transfer, without delaying it. A READ's note is sent here, to not delay the READ."""
        if self._in_thread or peer not in self._told:  # where a call may take long
            self._told.add(peer)
            self._thread.submit(self._end, op, peer, note, handle)
        else:
            self._end(op, peer, note, handle)

    def _end(self, op: str, peer: str, note: bytes, handle: Any) -> None:
        self._release(handle)
        if op == "READ" and peer in self._peers:
            with contextlib.suppress(*self._errors):  # the peer is gone, but its KV has arrived
                self._agent.send_notif(peer, note)

    def _release(self, handle: Any) -> None:
        with contextlib.suppress(*self._errors):  # on an error the agent keeps it until `disconnect`
            handle.release()

    async def _call(self, call: Callable[..., Any], *args: Any, brief: bool = False) -> Any:
        """Call in the agent's thread; if `brief` and the thread is idle, call it here."""
        if brief and not self._in_thread:
            return call(*args)
        self._in_thread += 1
        running = asyncio.get_running_loop().run_in_executor(self._thread, call, *args)
        running.add_done_callback(self._returned)
        return await asyncio.shield(running)

    def _returned(self, running: asyncio.Future[Any]) -> None:
        self._in_thread -= 1
        running.exception()  # the caller may be gone

    @contextlib.contextmanager
    def _mapped(self, peer: str) -> Iterator[None]:
        try:
            yield
        except HandoffFailed:
            self.disconnect(peer)
            raise
        except self._errors as exc:
            self.disconnect(peer)
            raise HandoffFailed(f"{peer} can't be reached: {exc}") from exc

    def _pump(self) -> None:
        if not self._in_thread:
            with contextlib.suppress(*self._errors):  # of a peer; its transfers raise it
                self._mover.get_new_notifs()  # it gets none, but the call makes its sends progress
                for notes in self._agent.get_new_notifs().values():
                    for note in notes:
                        self._heard(note)

    async def _pause(self) -> None:
        lively = self.expecting or asyncio.get_running_loop().time() < self._lively_until
        await asyncio.sleep(_LIVELY_S if lively else _IDLE_S)

    def _heard(self, note: bytes) -> None:
        try:
            self._on_note(note)
        except Exception as exc:  # noqa: BLE001 (a bad note doesn't stop those of other peers)
            log.error("note_not_understood", error=type(exc).__name__)
