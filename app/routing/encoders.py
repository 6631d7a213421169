"""Chooses the workers that encode the pictures of a prompt. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.messages.handoff import EmbeddingHandle
from app.messages.media import Media
from app.routing.candidates import Candidate, Placement
from app.routing.cost import Fleet, line
from app.routing.policy import is_full

Encoded = Mapping[tuple[str, str], EmbeddingHandle]  # by model and the picture's hash


class Encoder(Struct, frozen=True):
    """A worker's part."""

    to: Placement
    media: tuple[int, ...]  # numbers of the pictures


def choose_encoders(
    media: Sequence[Media],
    places: Sequence[Candidate],
    encodings: Encoded,
    model: str,
    weights: str,
    now: float,
    cached_tokens: int = 0,
) -> list[Encoder]:
    """Each picture, the largest first, goes to the worker that has done it soonest: several are spread.

    One that a live worker has encoded costs nothing, and goes to nobody; nor does one among the first `cached_tokens`
    of the prompt, whose KV is there. Empty also where no worker has room: then the pictures are encoded where the
    prompt is computed.
    """
    alive = {c.lease.worker.id for c in places}
    encoded_names = {
        name
        for (of, name), handle in encodings.items()
        if of == model and handle.weights == weights and handle.worker in alive
    }
    pictures: dict[str, list[int]] = {}
    for number, one in enumerate(media):
        if one.kind == "image" and one.sha256 not in encoded_names and one.offset + one.length > cached_tokens:
            pictures.setdefault(one.sha256, []).append(number)
    able = [c for c in places if _can_encode(c, weights)]
    if not (able and pictures):
        return []
    fleet = Fleet.of(able)
    ends = [line(c, fleet, now) for c in able]  # when each worker is through with all that it has
    parts: dict[int, list[int]] = {}
    for numbers in sorted(pictures.values(), key=lambda n: -media[n[0]].length):
        tokens = media[numbers[0]].length
        after = [at + tokens / fleet.tokens_per_s[c.lease.worker.pool] for at, c in zip(ends, able, strict=True)]
        best = min(range(len(able)), key=after.__getitem__)
        ends[best] = after[best]
        parts.setdefault(best, []).append(numbers[0])
    return [_encoder(able[place], numbers, media) for place, numbers in parts.items()]


def _encoder(c: Candidate, numbers: list[int], media: Sequence[Media]) -> Encoder:
    tokens = sum(media[number].length for number in numbers)
    worker = c.lease.worker
    return Encoder(Placement(worker.pool, worker.id, c.rank, blocks=0, tokens=tokens, cached=0), tuple(sorted(numbers)))


def _can_encode(c: Candidate, weights: str) -> bool:
    lease = c.lease
    of_role = lease.worker.role == "encode" and "image" in lease.worker.media
    return of_role and not lease.draining and lease.state.weights == weights and not is_full(c)
