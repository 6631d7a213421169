"""Spans to copy between two memories: merges neighbours, and cuts long ones."""

from collections.abc import Iterator, Sequence

Spans = list[tuple[int, int, int]]  # own address, other address, bytes


def merged(pairs: Sequence[tuple[int, int]], size: int) -> Spans:
    """(own, other) addresses of blocks of `size` bytes as spans; blocks adjacent on both sides become one."""
    if not pairs:
        return []
    sorted_pairs = sorted(pairs)
    (start, other), spans = sorted_pairs[0], []
    length = 0
    for here, there in sorted_pairs:
        if here != start + length or there != other + length:
            spans.append((start, other, length))
            start, other, length = here, there, 0
        length += size
    spans.append((start, other, length))
    return spans


def pieces(spans: Spans, most: int) -> Iterator[Spans]:
    """The same spans in parts of at most `most` bytes; longer spans are cut."""
    part: Spans = []
    room = most
    for here, there, size in spans:
        offset = 0
        while offset < size:
            take = min(room, size - offset)
            part.append((here + offset, there + offset, take))
            offset, room = offset + take, room - take
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part
