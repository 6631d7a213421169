"""Samples that a process holds for its requests, where workers collect them: a connection of TCP, without TLS.

A worker sends the token, then the SHA-256 of one medium after the other, 32 bytes each, and gets `THERE` and the bytes
for each; or `GONE`, and the connection ends.
"""

from msgspec import Struct

TOKEN_BYTES = HASH_BYTES = 32
THERE, GONE = b"\1", b"\0"
PIECE = 2**20  # bytes that are copied at once, beside other work


class HeldSamples(Struct, frozen=True, array_like=True):
    """A request's samples that don't pass through Redis."""

    host: str
    port: int
    token: bytes  # nobody else knows it; it is good for as long as the request
    sizes: dict[str, int]  # bytes of each, by its SHA-256
