"""KV events in the format of vLLM's ZmqEventPublisher, so that one subscriber understands both engines.

PUB frames: topic, sequence number (8 bytes, big endian, from 0), msgpack batch. A DEALER asks the ROUTER
with [empty, first sequence number] and gets [empty, topic, sequence number, batch] for each batch still in the
buffer, then [empty, empty, -1, empty].
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Annotated

import msgspec
import structlog
import zmq
import zmq.asyncio
from pydantic import BaseModel, ConfigDict, Field

from app.engines.base import KvEventSource
from app.errors import EngineFailed
from app.running.loops import keep

_END = (-1).to_bytes(8, "big", signed=True)
_SEND_QUEUE = 100_000  # batches queued for a slow subscriber before it loses some
EngineHash = int | bytes

Count = Annotated[int, Field(gt=0)]

log = structlog.get_logger(__name__)


class KvEventArgs(BaseModel):
    """Settings of the sockets that publish KV events. Both bind; port `*` lets the system choose."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    endpoint: str = "tcp://127.0.0.1:*"
    replay_endpoint: str = "tcp://127.0.0.1:*"
    topic: str = ""
    buffer_steps: Count = 10_000  # batches kept for replay

    def of_rank(self, rank: int) -> "KvEventArgs":
        """A data-parallel rank's own endpoints: vLLM adds the rank to a port that is named."""
        ends = {name: _add_to_port(getattr(self, name), rank) for name in ("endpoint", "replay_endpoint")}
        return self.model_copy(update=ends)


def _add_to_port(endpoint: str, rank: int) -> str:
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}" if port.isdigit() else endpoint


ExtraKey = str | tuple[str, int]  # LoRA name or salt; or a picture's identifier, and its offset from the block


class KvEvent(msgspec.Struct, frozen=True, tag=True):
    """A map on the wire, with the class's name under `type`."""


class BlockStored(KvEvent, frozen=True):
    block_hashes: Sequence[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = "GPU"
    lora_name: str | None = None
    extra_keys: list[list[ExtraKey] | None] | None = None  # per block: what its hash covers besides tokens
    group_idx: int | None = None  # layers that keep their blocks on their own


class BlockRemoved(KvEvent, frozen=True):
    block_hashes: Sequence[EngineHash]
    medium: str | None = "GPU"
    group_idx: int | None = None


class AllBlocksCleared(KvEvent, frozen=True):
    pass


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    ts: float  # seconds since the epoch
    events: list[KvEvent]
    data_parallel_rank: int | None = 0


class KvPublisher:
    """Belongs to the event loop on which it was created."""

    def __init__(self, args: KvEventArgs, rank: int = 0) -> None:
        """Bind. Raises: EngineFailed when an endpoint can't be bound."""
        self._context = zmq.asyncio.Context()
        self._pub = zmq.Context(self._context).socket(zmq.PUB)
        self._pub.set_hwm(_SEND_QUEUE)
        self._replay = self._context.socket(zmq.ROUTER)
        self._topic, self._rank = args.topic.encode(), rank
        self._encode = msgspec.msgpack.Encoder().encode
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=args.buffer_steps)
        self._seq = 0
        try:
            self.source = KvEventSource(
                endpoint=_bind(self._pub, args.endpoint),
                replay_endpoint=_bind(self._replay, args.replay_endpoint),
                topic=args.topic,
            )
        except EngineFailed:
            self._close_sockets()
            raise
        self._server = asyncio.create_task(keep("kv_replay_not_served", self._serve_replay, 0))

    def publish(self, events: list[KvEvent]) -> None:
        """Send one batch. Never blocks."""
        payload = self._batch(events)
        self._pub.send_multipart((self._topic, self._seq.to_bytes(8, "big"), payload))
        self._kept.append((self._seq, payload))
        self._seq += 1

    def _batch(self, events: list[KvEvent]) -> bytes:
        return self._encode(_Batch(time.time(), events, self._rank))

    async def close(self) -> None:
        self._server.cancel()
        await asyncio.gather(self._server, return_exceptions=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._pub.close(linger=0)
        self._replay.close(linger=0)
        self._context.term()

    async def _serve_replay(self) -> None:
        frames = await self._replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("kv replay refused", action="kv_replay_refused", frames=len(frames))
            return
        client, _, first = frames
        for seq, payload in list(self._kept):
            if seq >= int.from_bytes(first, "big"):
                await self._replay.send_multipart((client, b"", self._topic, seq.to_bytes(8, "big"), payload))
        await self._replay.send_multipart((client, b"", b"", _END, b""))


def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str) -> str:
    """Bind; returns the endpoint to connect to."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as exc:
        raise EngineFailed(f"args.kv_events: can't bind {endpoint}: {exc.strerror}") from exc
    bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
    return bound.decode().rstrip("\0").replace("//0.0.0.0:", "//127.0.0.1:")
