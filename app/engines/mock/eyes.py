"""Pictures of the mock engine. Encoded ones have real bytes, and the engine dies of a wrong one, as real engines do."""

import asyncio
import os
import signal

from xxhash import xxh3_64_digest

from app.engines.base import Embedding, MediaInput
from app.engines.mock.args import MockArgs

_ITEM = 4  # bytes of a float32


class Eyes:
    """Encodes one picture after the other, in the order of arrival."""

    def __init__(self, args: MockArgs) -> None:
        self._args, self._turn = args, asyncio.Lock()
        self.encoded = 0

    async def encode(self, picture: MediaInput) -> Embedding:
        args = self._args
        if args.dies_on_picture is not None and picture.data[0] == args.dies_on_picture:
            os.kill(os.getpid(), signal.SIGKILL)
        async with self._turn:
            await asyncio.sleep(picture.media.length / args.encode_tokens_per_s / args.speedup)
        self.encoded += 1
        rows = picture.media.length + args.embedding_rows
        size = rows * args.embedding_width * _ITEM
        digest = xxh3_64_digest(picture.data)
        return Embedding(rows, args.embedding_width, "float32", (digest * (size // len(digest) + 1))[:size])

    def check(self, one: MediaInput) -> None:
        """Dies of an encoded picture of another shape."""
        made = one.embedding
        if made is not None and (made.rows, made.width, made.dtype) != (
            one.media.length, self._args.embedding_width, "float32",
        ):  # fmt: skip
            os.kill(os.getpid(), signal.SIGKILL)


def seen_picture(one: MediaInput) -> bytes:
    """A digest of what the engine sees: an encoded picture, or else its samples."""
    return one.embedding.data[:8] if one.embedding is not None else xxh3_64_digest(one.data)
