"""Tells whoever asks what a mock engine holds, so that a prefix index can be compared with it.

It is told from the engine's own bookkeeping. Events say only which tokens a block has, not whether it is still there.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from socket import AF_UNIX, socket

from msgspec import Struct

from app.engines.kv_publisher import BlockStored, ExtraKey, KvEvent
from app.messages.wire import decoder, encode


class Content(Struct, frozen=True):
    """The content that a block's hash covers."""

    parent: int | None  # the parent's hash
    tokens: list[int]
    keys: list[ExtraKey] = []


class RankBlocks(Struct, frozen=True):
    """Blocks that one rank holds in its own cache and in its host memory, by hash.

    `contents` says what these are, and those before them.
    """

    device: list[int]
    host: list[int]
    contents: dict[int, Content]


decode_held = decoder(list[RankBlocks])


def note(contents: dict[int, Content], events: Iterable[KvEvent]) -> None:
    """Adds what these events say of blocks."""
    for event in events:
        if isinstance(event, BlockStored) and event.medium == "GPU":
            parent, size = event.parent_block_hash, event.block_size
            for i, block in enumerate(event.block_hashes):
                keys = event.extra_keys[i] if event.extra_keys else None
                tokens = event.token_ids[i * size : (i + 1) * size]
                assert isinstance(block, int)
                assert not isinstance(parent, bytes)
                contents[block] = Content(parent, tokens, keys or [])
                parent = block


def only(contents: dict[int, Content], blocks: Iterable[int]) -> dict[int, Content]:
    """Contents of these blocks, and of those before them in their prompts."""
    selection: dict[int, Content] = {}
    for block in blocks:
        at: int | None = block
        while at is not None and at not in selection:
            selection[at] = contents[at]
            at = contents[at].parent
    return selection


async def tell(read: Callable[[], Sequence[RankBlocks]]) -> asyncio.Server:
    """Answers each connection with what `read` returns as msgpack, until it is closed. Raises: OSError."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(read()))
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_unix_server(answer, _address(os.getpid()))


def ask(pid: int) -> list[RankBlocks]:
    """Asks the engine in that process what it holds. Raises: OSError; msgspec.DecodeError if it ends meanwhile."""
    with socket(AF_UNIX) as asking:
        asking.connect(_address(pid))
        return decode_held(b"".join(iter(lambda: asking.recv(2**16), b"")))


def _address(pid: int) -> str:
    """The socket's address, in the kernel's own namespace: no file, whose path may be too long, is left behind."""
    return f"\0xylem-mock-{pid}"
