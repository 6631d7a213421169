"""Bytes as they arrive when something is broken: anything, cut off, with bits turned."""

from hypothesis import strategies as st


def damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=200), whole.flatmap(_cut), whole.flatmap(_turned))


def _cut(raw: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(0, len(raw)).map(lambda end: raw[:end])


def _turned(raw: bytes) -> st.SearchStrategy[bytes]:
    bits = st.lists(st.integers(0, max(0, 8 * len(raw) - 1)), min_size=1, max_size=4)
    return bits.map(lambda places: _turn(raw, places))


def _turn(raw: bytes, places: list[int]) -> bytes:
    out = bytearray(raw)
    for place in places if raw else ():
        out[place // 8] ^= 1 << place % 8
    return bytes(out)
