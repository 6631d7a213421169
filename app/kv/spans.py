"""Spans to copy between two memories: merges neighbours, and cuts long ones."""

from collections.abc import Iterator, Sequence

Spans = list[tuple[int, int, int]]  # own address, other address, bytes


def merged(pairs: Sequence[tuple[int, int]], size: int) -> Spans:
    """(own, other) addresses of blocks of `size` bytes as spans; blocks adjacent on both sides become one."""
    spans: Spans = []
    for here, there in sorted(pairs):
        if spans and spans[-1][0] + spans[-1][2] == here and spans[-1][1] + spans[-1][2] == there:
            spans[-1] = (*spans[-1][:2], spans[-1][2] + size)
        else:
            spans.append((here, there, size))
    return spans


def pieces(spans: Spans, most: int) -> Iterator[Spans]:
    """The same spans in parts of at most `most` bytes; longer spans are cut."""
    part: Spans = []
    room = most
    for here, there, size in spans:
        done = 0
        while done < size:
            take = min(room, size - done)
            part.append((here + done, there + done, take))
            done, room = done + take, room - take
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part
