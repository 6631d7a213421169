"""KV that one worker leaves another, by Celery's chain as JSON; and encoded pictures, whose handle is in Redis."""

from typing import Any

from msgspec import Struct

from app.ids import WorkerId
from app.messages.wire import decoder


class KvHandle(Struct, frozen=True, tag="lent"):
    """A handoff in sequence: the prefill engine has computed a prompt's KV, and keeps it for the decode engine."""

    holder: str  # the engine that keeps it; a restarted one has another id
    expires: float  # s since the epoch, by Redis' clock; from then on other KV may overwrite it
    tokens: int  # of the prompt
    params: dict[str, Any]  # the engine's own, as JSON; nothing of prompt or answer
    weights: str = ""  # the version that computed it


class Rendezvous(Struct, frozen=True, tag="room"):
    """A handoff at once: where both engines connect while the prompt is being computed."""

    host: str
    port: int
    room: int  # 63 bits, drawn for this request


Handoff = KvHandle | Rendezvous


class EmbeddingHandle(Struct, frozen=True, array_like=True):
    """An encoded picture in the memory of the worker that encoded it. Another one may have its place by now."""

    worker: WorkerId
    agent: str  # the NIXL agent of its memory, another one for each start
    metadata: bytes  # by which that is reached
    pages: list[int]  # addresses, in order
    page_bytes: int
    rows: int
    width: int
    dtype: str  # as torch names it, such as float32
    checksum: int  # CRC-32 of the bytes
    weights: str = ""  # the version that encoded it


decode_embedding = decoder(EmbeddingHandle)
