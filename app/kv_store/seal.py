"""A KV block as a store keeps it: its bytes, and in front of them what tells damage, or another block, from it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from xxhash import xxh3_128

from app.errors import SettingsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_PLAIN, _SECRET = b"XKV1", b"XKE1"  # what a stored block begins with: the format, and its version
_SUM, _NONCE, _TAG = 16, 12, 16  # bytes
_KEY = 32


class Damaged(Exception):
    """The block that was read is not the one that was asked for."""


class BlockSeal:
    """Plain: XKV1, xxh3_128(name + data), data. With a key: XKE1, nonce, AES-256-GCM of data, bound to the name."""

    def __init__(self, key: bytes | None = None) -> None:
        self._cipher = None if key is None else _cipher(key)

    def close(self, name: bytes, data: bytes | memoryview) -> bytes | bytearray:
        """`name`: of the block, which its content depends on."""
        if self._cipher is None:
            return b"".join((_PLAIN, _sum(name, data), data))
        nonce = os.urandom(_NONCE)
        head = _SECRET + nonce
        output = bytearray(len(head) + len(data) + _TAG)  # all at once: a second copy took ten times as long
        output[: len(head)] = head
        self._cipher.encrypt_into(nonce, data, name, memoryview(output)[len(head) :])
        return output

    def open(self, name: bytes, block: bytes) -> memoryview | bytes:
        """The data. Raises: Damaged, also for a block that was closed with another key, or with none."""
        view = memoryview(block)
        if self._cipher is None:
            data = view[len(_PLAIN) + _SUM :]
            if view[: len(_PLAIN)] != _PLAIN or view[len(_PLAIN) : len(_PLAIN) + _SUM] != _sum(name, data):
                raise Damaged
            return data
        begin = len(_SECRET)
        if view[:begin] != _SECRET:
            raise Damaged
        try:
            return self._cipher.decrypt(view[begin : begin + _NONCE], view[begin + _NONCE :], name)
        except Exception as exc:  # the package's own, whose name would need it
            raise Damaged from exc


def read_key(path: Path) -> bytes:
    """Raises: SettingsError."""
    try:
        key = path.read_bytes()
    except OSError as exc:
        raise SettingsError(f"tiers.key_file={path}: {exc.strerror}") from exc
    if len(key) != _KEY:
        raise SettingsError(f"tiers.key_file={path}: it has {len(key)} bytes, and has to have {_KEY} random ones")
    return key


def _cipher(key: bytes) -> "AESGCM":
    """Raises: SettingsError."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise SettingsError("tiers.key_file: encryption needs the package cryptography") from exc
    if not hasattr(AESGCM, "encrypt_into"):
        raise SettingsError("tiers.key_file: encryption needs a later version of the package cryptography")
    return AESGCM(key)


def _sum(name: bytes, data: bytes | memoryview) -> bytes:
    digest = xxh3_128(name)
    digest.update(data)
    return digest.digest()
