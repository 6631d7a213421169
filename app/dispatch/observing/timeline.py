"""Notes when each stage of a request began and ended."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Literal

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from app.dispatch.attempt import PlacedPrompt
from app.dispatch.inflight import InFlight
from app.dispatch.observing.route_explanation import explained
from app.dispatch.observing.timeline_types import (
    EndedPrompt,
    InShort,
    RecentEnded,
    RecentRunning,
    RequestTimeline,
    RunningPrompt,
    WorkerPart,
)
from app.ids import KeyId, RequestId
from app.messages.job import Timing

_PROMPTS, _BLOCKS = 512, 256  # what is remembered of placed prompts, and of each: at most a megabyte


class Timeline(Struct, frozen=True):
    """One prompt's times, in seconds since the epoch by Redis' clock."""

    model: str
    outcome: str
    arrived: float
    placed: float  # 0: never
    ended: float
    attempts: int
    prompt_tokens: int
    timings: list[Timing]  # of the prefill worker, if there was one, and of the worker that answered
    x_request_id: str
    encoded_apart: bool = False  # other workers encoded its pictures before
    route: bytes = b""  # JSON: why it was placed there, of a client that asked for it

    @classmethod
    def of(cls, inflight: InFlight, model: str, outcome: str, arrival: float, end: float) -> "Timeline":
        job = inflight.job
        prompt_tokens, timings = len(job.prompt), inflight.timings
        placed_at, attempts = inflight.attempt.placed_at, inflight.attempts
        route = (
            orjson.dumps(explained(job, inflight.attempt.decisions, candidates=True))
            if inflight.wishes.explain
            else b""
        )
        return cls(
            model,
            outcome,
            arrived=arrival,
            placed=placed_at,
            ended=end,
            attempts=attempts,
            prompt_tokens=prompt_tokens,
            timings=timings,
            x_request_id=job.x_request_id,
            encoded_apart=inflight.attempt.encoders > 0,
            route=route,
        )

    def stages(self) -> dict[str, float]:
        """Seconds of each stage. `transfer` is measured by the engine, and part of `resume`."""
        if not self.timings:
            return {}
        first, last = self.timings[0], self.timings[-1]
        spans = {
            "placement": self.placed - self.arrived,
            "encode_pictures" if self.encoded_apart else "queue": first.taken - self.placed,
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
        """The place where the prompt was computed.

        `here`: by the worker that answered. `apart`: by another one. `refused`: by the worker that answered, after it
        had refused the handoff.
        """
        if self.timings[-1].refused:
            return "refused"
        return "here" if self.timings[-1].pulled is None else "apart"


class Timelines:
    """The timelines of this process's running requests, and of the last ones that ended."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self.placed: deque[PlacedPrompt] = deque(maxlen=_PROMPTS)  # of the last requests that ended
        self._running: dict[RequestId, tuple[KeyId, Sequence[InFlight]]] = {}
        self._seen: OrderedDict[RequestId, tuple[KeyId, list[Timeline]]] = OrderedDict()

    def began(self, request: RequestId, key: KeyId, prompts: Sequence[InFlight]) -> None:
        """`key`: its API key. `prompts` may grow."""
        self._running[request] = key, prompts

    def running(self) -> Iterator[tuple[RequestId, Sequence[InFlight]]]:
        """The requests that have not ended, with their prompts; without any while they are being admitted."""
        return ((request, prompts) for request, (_key, prompts) in self._running.items())

    def ended(self, request: RequestId, key: KeyId, prompts: list[Timeline]) -> None:
        _, in_flight = self._running.pop(request, (key, ()))
        self.placed.extend([prompt for inflight in in_flight if (prompt := inflight.attempt.as_placed(_BLOCKS))])
        self._seen[request] = key, prompts
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def forget(self, keys: Set[KeyId]) -> None:
        """The requests of these keys that have ended."""
        for request in [request for request, (key, _prompts) in self._seen.items() if key in keys]:
            del self._seen[request]

    def recent(self, most: int) -> list[RecentRunning | RecentEnded]:
        """The newest requests, running ones before those that have ended, without prompt or answer."""
        running: list[RecentRunning | RecentEnded] = [
            {"id": request, "pool": prompts[0].groups[0][0], **_under_way(prompts[0])}
            for request, (_key, prompts) in islice(reversed(self._running.items()), most)
            if prompts
        ]
        ended_requests = islice(reversed(self._seen.items()), most - len(running))
        running += [{"id": request, **_in_short(prompts)} for request, (_key, prompts) in ended_requests if prompts]
        return running

    def show(self, request: RequestId, key: KeyId | None) -> RequestTimeline | None:
        """The timeline without prompt or answer; None if unknown. `key`: its API key; None: of any key."""
        if request in self._running:
            owner, in_flight = self._running[request]
            prompts: list[RunningPrompt] | list[EndedPrompt] = [_under_way(inflight) for inflight in in_flight]
        elif request in self._seen:
            owner, timelines = self._seen[request]
            prompts = [_shown(one) for one in timelines]
        else:
            return None
        return {"id": request, "prompts": prompts} if key in (None, owner) else None


def _under_way(inflight: InFlight) -> RunningPrompt:
    """A prompt whose request has not ended."""
    return {
        "x_request_id": inflight.job.x_request_id,
        "state": inflight.state,
        "attempts": inflight.attempts,
        "workers": [worker for worker, _ in inflight.attempt.workers],
        "prompt_tokens": len(inflight.job.prompt),
        "answer_tokens": sum(len(out.tokens) for out in inflight.out),
    }


def _in_short(prompts: Sequence[Timeline]) -> InShort:
    """A request that has ended; times as `_shown` has them, of its first prompt."""
    timeline = prompts[0]
    first = timeline.timings[0].first if timeline.timings else 0.0
    return {
        "model": timeline.model,
        "outcome": timeline.outcome,
        "arrived": timeline.arrived,
        "prompts": len(prompts),
        "prompt_tokens": timeline.prompt_tokens,
        "attempts": timeline.attempts,
        "workers": [timing.worker for timing in timeline.timings],
        "first_token_s": round(first - timeline.arrived, 6) if first else None,
        "ended_s": round(timeline.ended - timeline.arrived, 6),
    }


def _shown(timeline: Timeline) -> EndedPrompt:
    """A prompt that has ended; times in seconds since the request arrived."""
    at = timeline.arrived
    prompt: EndedPrompt = {
        "x_request_id": timeline.x_request_id,
        "model": timeline.model,
        "outcome": timeline.outcome,
        "arrived": at,
        "prompt_tokens": timeline.prompt_tokens,
        "attempts": timeline.attempts,
        "placed_s": round(timeline.placed - at, 6) if timeline.placed else None,
        "workers": [_part(t, at) for t in timeline.timings],
        "ended_s": round(timeline.ended - at, 6),
        "stages": {stage: round(seconds, 6) for stage, seconds in timeline.stages().items()},
    }
    if timeline.route:
        prompt["route"] = orjson.loads(timeline.route)
    return prompt


def _part(timing: Timing, at: float) -> WorkerPart:
    part: WorkerPart = {
        "worker": timing.worker,
        "taken_s": round(timing.taken - at, 6),
        "first_token_s": round(timing.first - at, 6) if timing.first else None,
        "ended_s": round(timing.ended - at, 6),
        "cost_s": round(timing.cost_s, 6),
    }
    if timing.pulled is not None:
        part["pulled"] = asdict(timing.pulled)
    if timing.refused:
        part["handoff_refused"] = timing.refused
    return part
