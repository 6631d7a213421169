"""Request traces: gzip'd or plain JSON lines, one request each, with prefix blocks of 512 tokens and without text.

An id of `hash_ids` stands for a block and everything before it, so that two requests share exactly as many leading
blocks as they have leading ids in common. The last block may be partial.
"""

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

BLOCK_TOKENS = 512


class BadTrace(Exception):
    """Names the file, and the line."""


class Request(Struct, frozen=True, omit_defaults=True):
    """Lengths are in tokens, times in milliseconds."""

    input_length: int
    output_length: int
    timestamp: float | None = None  # arrival, from the start of the trace
    hash_ids: list[int] = []  # none: nothing is known of shared prefixes
    session_id: int | str | None = None
    delay: float | None = None  # after the answer before in its session, where there is no timestamp


def read_trace(path: Path) -> list[Request]:
    """The requests in the file's order. Raises: BadTrace."""
    decode = msgspec.json.Decoder(Request).decode
    requests, number = [], 0
    sessions: set[int | str | None] = set()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    requests.append(_checked(decode(line), sessions))
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as exc:
        raise BadTrace(f"{path}, line {number}: {exc}") from exc
    except (OSError, EOFError, zlib.error) as exc:
        raise BadTrace(f"{path}, after line {number}: {exc}" if number else f"{path}: {exc}") from exc
    if not requests:
        raise BadTrace(f"{path} has no requests")
    return requests


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    """Raises: OSError."""
    encode = msgspec.json.Encoder().encode
    with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
        for request in requests:
            file.write(encode(request) + b"\n")


def _checked(request: Request, sessions: set[int | str | None]) -> Request:
    """`sessions`: the sessions so far. Raises: ValueError."""
    if request.input_length < 1 or request.output_length < 0:
        raise ValueError("`input_length` has to be 1 or more, `output_length` 0 or more")
    if request.timestamp is None and (request.session_id is None or request.delay is None):
        raise ValueError("without a `timestamp` it needs `session_id` and `delay`")
    if request.timestamp is None and request.session_id not in sessions:
        raise ValueError(f"session {request.session_id} has no earlier request with a `timestamp`")
    sessions.add(request.session_id)
    if min(request.timestamp or 0, request.delay or 0) < 0:
        raise ValueError("`timestamp` and `delay` can't be negative")
    blocks = -(-request.input_length // BLOCK_TOKENS)
    if request.hash_ids and len(request.hash_ids) != blocks:
        raise ValueError(f"{request.input_length} tokens have {blocks} `hash_ids`, not {len(request.hash_ids)}")
    return request
