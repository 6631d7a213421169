"""The encoding of the messages between processes: msgpack, arrays whose fields are only ever added at the end.

They are frozen, and decoded once. Those that come for every token or request are not tracked by the garbage collector
(`gc=False`): they hold no cycles.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

WIRE_VERSION = 2  # of all messages, of keys and of scripts: see `app/store/wire_version.py`
T = TypeVar("T")
encode = msgspec.msgpack.Encoder().encode


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """A decoder of such messages. It raises msgspec.DecodeError only, whatever the bytes are."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(raw: bytes) -> T:
        try:
            return decode(raw)
        except (UnicodeDecodeError, RecursionError) as exc:
            raise msgspec.DecodeError(str(exc)) from None

    return read
