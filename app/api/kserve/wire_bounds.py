"""Bounds of a gRPC message, before protobuf builds what it says: some bytes of it may say millions of values.

Its fields are walked through and not read. Each costs a microsecond here, and no more of them are looked at than a
message may have.
"""

from app.errors import RequestError

MOST_FIELDS = 8192  # of a message and of those in it, together
_MOST_PACKED = 2**16  # bytes of numbers that stand together
# Of each message, the fields that are messages.
_WITHIN = {
    "request": {4: "entry", 5: "input", 6: "output"},
    "input": {4: "entry", 5: "contents"},
    "output": {2: "entry"},
    "entry": {2: "parameter"},
    "contents": {},
    "parameter": {},
}
_NUMBERS = {"input": {3}, "contents": {1, 2, 3, 4, 5, 6, 7}}  # fields that may be many numbers
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_fields(raw: bytes) -> None:
    """Checks a ModelInferRequest. Raises: RequestError, if it has too many fields, or is none."""
    remaining_fields = MOST_FIELDS
    waiting = [(0, len(raw), "request")]
    while waiting:
        at, end, kind = waiting.pop()
        while at < end:
            if not remaining_fields:
                raise RequestError(f"The message has more than {MOST_FIELDS} fields.")
            remaining_fields -= 1
            tag, at = _varint(raw, at, end)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                _, at = _varint(raw, at, end)
                continue
            if wire in (_FIXED64, _FIXED32):
                at += 8 if wire == _FIXED64 else 4
            elif wire == _BYTES:
                size, at = _varint(raw, at, end)
                if (within := _WITHIN[kind].get(number)) is not None:
                    waiting.append((at, min(at + size, end), within))
                elif size > _MOST_PACKED and number in _NUMBERS.get(kind, ()):
                    raise RequestError(f"An input has more than {_MOST_PACKED} bytes of numbers.")
                at += size
            else:
                raise _broken()
            if at > end:
                raise _broken()


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and where it ends. Raises: RequestError."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _broken()


def _broken() -> RequestError:
    return RequestError("The message can't be decoded.")
