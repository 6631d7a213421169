"""What happened to a request, and when."""

from collections import OrderedDict
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict

from app.api.flight import Flight
from app.errors import RequestNotFound
from app.ids import RequestId
from app.messages import Timing


class Seen(Struct, frozen=True):
    """One prompt's way; times in seconds since the epoch, by Redis' clock as several machines know it."""

    model: str
    outcome: str
    arrived: float
    placed: float  # 0: never
    ended: float
    attempts: int
    prompt_tokens: int
    timings: list[Timing]  # of the worker that only prefilled, if there was one, and of the one that answered

    @classmethod
    def of(cls, flight: Flight, model: str, outcome: str, arrived: float, ended: float) -> "Seen":
        job = flight.job
        return cls(model, outcome, arrived, flight.placed_at, ended, flight.attempts, len(job.prompt), flight.timings)

    def stages(self) -> dict[str, float]:
        """Seconds of each. `transfer` is what the engine says of it, and part of `resume`."""
        if not self.timings:
            return {}
        first, last = self.timings[0], self.timings[-1]
        spans = {
            "placement": self.placed - self.arrived,
            "queue": first.taken - self.placed,
            "prefill": first.first - first.taken,
            "decode": last.ended - (last.first or last.taken),
        }
        if first is not last:
            spans |= {"hop": last.taken - first.ended, "resume": last.first - last.taken}
        if last.pulled is not None and last.pulled.seconds:
            spans["transfer"] = last.pulled.seconds
        return {stage: max(0.0, seconds) for stage, seconds in spans.items()}

    @property
    def computed(self) -> Literal["here", "apart", "refused"]:
        """Where its prompt was."""
        if self.timings[-1].refused:
            return "refused"
        return "here" if self.timings[-1].pulled is None else "apart"


class Timelines:
    """Of the requests that ended last in this API replica."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._seen: OrderedDict[RequestId, list[Seen]] = OrderedDict()

    def add(self, request: RequestId, prompts: list[Seen]) -> None:
        self._seen[request] = prompts
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def show(self, request: RequestId) -> dict[str, Any]:
        """Neither prompt nor answer. Raises: RequestNotFound."""
        found = self._seen.get(request)
        if found is None:
            raise RequestNotFound(
                f"This API replica knows no request '{request}' that has ended; it remembers the last {self._most}."
            )
        return {"id": request, "prompts": [_shown(seen) for seen in found]}


def under_way(flight: Flight) -> dict[str, Any]:
    """Of a prompt that has not ended."""
    return {
        "state": flight.state,
        "attempts": flight.attempts,
        "workers": [worker for worker, _ in flight.workers()],
        "prompt_tokens": len(flight.job.prompt),
        "answer_tokens": sum(len(out.tokens) for out in flight.out),
    }


def _shown(seen: Seen) -> dict[str, Any]:
    """Times in seconds since the request arrived."""
    at = seen.arrived
    return {
        "model": seen.model,
        "outcome": seen.outcome,
        "arrived": at,
        "prompt_tokens": seen.prompt_tokens,
        "attempts": seen.attempts,
        "placed_s": round(seen.placed - at, 6) if seen.placed else None,
        "workers": [_part(t, at) for t in seen.timings],
        "ended_s": round(seen.ended - at, 6),
        "stages": {stage: round(seconds, 6) for stage, seconds in seen.stages().items()},
    }


def _part(timing: Timing, at: float) -> dict[str, Any]:
    part: dict[str, Any] = {
        "worker": timing.worker,
        "taken_s": round(timing.taken - at, 6),
        "first_token_s": round(timing.first - at, 6) if timing.first else None,
        "ended_s": round(timing.ended - at, 6),
    }
    if timing.pulled is not None:
        part["pulled"] = asdict(timing.pulled)
    if timing.refused:
        part["handoff_refused"] = timing.refused
    return part
