"""Decides which pools get GPUs when not all wanted workers fit: those where they serve the most requests in time."""

from collections.abc import Callable, Sequence

from msgspec import Struct

_EVEN = 1e-3  # of the requests served: what a GPU is worth in a pool that serves none in time with so few


class Asked(Struct, frozen=True):
    least: int
    wanted: int  # at least `least`
    gpus: int  # of one worker
    rate: float  # requests/s
    served: Callable[[int], float]  # workers → requests/s within the objective
    # The same within the longer one for which it is planned where nobody meets that; None: it is planned for that.
    nearly: Callable[[int], float] | None = None
    aside: int = 0  # of the wanted workers: kept for aside requests only


def shared(wishes: Sequence[Asked], gpus: int) -> list[int]:
    """Workers of each, with at most so many GPUs in sum. First each gets its `least`, in order, as far as they go.

    A pool whose workers have none gets all that it wants.
    """
    worker_counts = []
    for one in wishes:
        worker_counts.append(min(one.wanted, one.least, gpus // one.gpus) if one.gpus else one.wanted)
        gpus -= worker_counts[-1] * one.gpus
    gpus = _handed_out(wishes, worker_counts, gpus, _served, [one.wanted - one.aside for one in wishes])
    # What none serves in time goes where it comes near to that, or to aside requests.
    _handed_out(wishes, worker_counts, gpus, _value, [one.wanted for one in wishes])
    return worker_counts


def _handed_out(
    wishes: Sequence[Asked], counts: list[int], gpus: int, value: Callable[[Asked, int], float], most: Sequence[int]
) -> int:
    """Adds workers to `counts`, up to `most`, as long as they are worth something. Returns the GPUs that are left."""
    while True:
        best, index, workers = 0.0, -1, 0
        for i, (one, has) in enumerate(zip(wishes, counts, strict=True)):
            if not one.gpus:
                continue
            for more in range(1, min(most[i] - has, gpus // one.gpus) + 1):
                gain = value(one, has + more) - value(one, has)
                if gain / (more * one.gpus) > best:
                    best, index, workers = gain / (more * one.gpus), i, more
        if index < 0:
            return gpus
        counts[index] += workers
        gpus -= workers * wishes[index].gpus


def _served(one: Asked, workers: int) -> float:
    return one.served(workers)


def _value(one: Asked, workers: int) -> float:
    serving_rate = one.nearly or one.served
    return serving_rate(workers) + _EVEN * (one.rate + 1e-6) * workers / max(1, one.wanted)
