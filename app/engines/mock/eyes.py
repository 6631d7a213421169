"""Pictures of the mock engine. Encoded ones have real bytes, and the engine dies of a wrong one, as real engines do."""

import asyncio
import os
import signal
from collections.abc import Sequence

from xxhash import xxh3_64_digest

from app.engines.base import Embedding, GenerateRequest, MediaInput
from app.engines.mock.args import MockArgs
from app.errors import RequestError
from app.messages.media import MediaKind, MediaSign
from app.tokenizing.tokenizer import Tokenizer

_ITEM = 4  # bytes of a float32
_SIDE = 32  # pixels of a square's side, for which there is a token
_MOST = 1024


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
        embedding = one.embedding
        if embedding is not None and (embedding.rows, embedding.width, embedding.dtype) != (
            one.media.length,
            self._args.embedding_width,
            "float32",
        ):
            os.kill(os.getpid(), signal.SIGKILL)


def signs_of(args: MockArgs, tokenizer: Tokenizer) -> tuple[MediaSign, ...]:
    markers: dict[MediaKind, str] = {"image": args.picture_marker, "video": args.video_marker}
    return tuple(
        MediaSign(kind, f"mock-{marker}", marker, tuple(tokenizer.encode(marker, add_special_tokens=False)), most=_MOST)
        for kind, marker in markers.items()
        if marker
    )


def expansion(sign: MediaSign, shape: Sequence[int]) -> list[int]:
    """Raises: RequestError."""
    frames, height, width, _ = shape if sign.kind == "video" else (1, *shape, 0)
    squares = frames * -(-height // _SIDE) * -(-width // _SIDE)
    if squares > _MOST:
        raise RequestError(f"it has more than {_MOST} squares")
    return [*sign.target] * squares


def dodged(request: GenerateRequest) -> list[int]:
    """The prompt with one token more for its last picture than that has squares; empty if it has it already."""
    media = request.media[-1].media
    rows, columns = (-(-side // _SIDE) for side in media.shape)
    ids = [request.prompt[media.offset]] * (rows * columns + 1)
    prompt = [*request.prompt[: media.offset], *ids, *request.prompt[media.offset + media.length :]]
    return [] if prompt == request.prompt else prompt


def seen_picture(one: MediaInput) -> bytes:
    """A digest of what the engine sees: an encoded picture, or else its samples."""
    return one.embedding.data[:8] if one.embedding is not None else xxh3_64_digest(one.data)
