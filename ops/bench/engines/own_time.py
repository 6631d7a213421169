"""Our own time of a request: from the client to the engine, and from the engine's first output to the client."""

import statistics
from collections.abc import Sequence
from typing import Any

import httpx

from ops.bench.engines.streams import Answer, chats, stream_all
from ops.bench.engines.timeline import timeline
from ops.bench.parts import Say

_ALONE = 20  # requests, one after the other


def own_times(url: str, under_load: Sequence[Answer], model: str, say: Say) -> dict[str, Any]:
    """Milliseconds, p50: of those answers, and of some without any other request. Raises: Unavailable."""
    say("own time of single requests")
    alone = stream_all(url, chats([model], _ALONE, 4, seed=1000), 1)
    loaded, single = _split(url, under_load), _split(url, alone)
    return {
        "sglang_own_ms_p50": _p50([to + back for to, back in loaded]),
        "sglang_own_in_ms_p50": _p50([to for to, _ in loaded]),
        "sglang_own_out_ms_p50": _p50([back for _, back in loaded]),
        "sglang_own_alone_ms_p50": _p50([to + back for to, back in single]),
    }


def _split(url: str, answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Milliseconds until the engine was asked, and from its first output on, for each answer. Raises: Unavailable.

    The worker's times are Redis' clock; it runs on this machine, so it is the client's clock as well.
    """
    found = []
    with httpx.Client(base_url=url, timeout=10) as client:
        for answer in answers:
            prompt = timeline(client, answer.id)
            taken = prompt["arrived"] + prompt["workers"][0]["taken_s"]
            first = prompt["arrived"] + prompt["workers"][-1]["first_token_s"]
            found.append((1e3 * (taken - answer.sent), 1e3 * (answer.first - first)))
    return found


def _p50(values: Sequence[float]) -> float:
    return statistics.median(values)
