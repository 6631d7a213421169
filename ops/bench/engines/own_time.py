"""Our own time of a request: from the client to the engine, and from the engine's first output to the client."""

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from statistics import median
from typing import Any

import httpx

from ops.bench.engines.streams import Answer, chats, stream_at
from ops.bench.engines.timeline import timeline
from ops.bench.parts import Say
from ops.bench.size import Size

_PER_S, _TOKENS = 1.0, 16  # arrivals, and tokens of each answer: a third of what an engine can do on two cores
_REQUESTS, _QUICK_REQUESTS = 60, 20


def own_ms(url: str, model: str, size: Size) -> list[tuple[float, float]]:
    """Milliseconds, as `_split` has them, of requests with Poisson arrivals. Raises: Unavailable."""
    count, random = size.of(_REQUESTS, _QUICK_REQUESTS, 2), Random(1)
    at = list(accumulate(random.expovariate(_PER_S) for _ in range(count)))
    return _split(url, stream_at(url, chats([model], count, _TOKENS, seed=1000), at))


def own_times(url: str, in_bursts: Sequence[Answer], model: str, size: Size, say: Say) -> dict[str, Any]:
    """Milliseconds, p50, of requests with Poisson arrivals; and of those that came several at a time.

    Raises: Unavailable.
    """
    say("own time of a request")
    times_ms = own_ms(url, model, size)
    return {
        "sglang_own_ms_p50": median(to + back for to, back in times_ms),
        "sglang_own_in_ms_p50": median(to for to, _ in times_ms),
        "sglang_own_out_ms_p50": median(back for _, back in times_ms),
        "sglang_own_burst_ms_p50": median(to + back for to, back in _split(url, in_bursts)),
    }


def _split(url: str, answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Milliseconds until the engine was asked, and from its first output on, for each answer. Raises: Unavailable.

    The worker's times are Redis' clock; it runs on this machine, so it is the client's clock as well.
    """
    times_ms = []
    with httpx.Client(base_url=url, timeout=10) as client:
        for answer in answers:
            prompt = timeline(client, answer.id)
            engine_start = prompt["arrived"] + prompt["workers"][0]["taken_s"]
            first_token = prompt["arrived"] + prompt["workers"][-1]["first_token_s"]
            times_ms.append((1e3 * (engine_start - answer.sent), 1e3 * (answer.first - first_token)))
    return times_ms
