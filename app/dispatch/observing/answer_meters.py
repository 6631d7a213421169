"""Observes an answer in its model's metrics, at its end."""

from collections.abc import Sequence
from typing import NamedTuple

from app.dispatch.generation_base import GenerationBase
from app.dispatch.observing.timeline import Timeline
from app.store import clock


class AnswerTimes(NamedTuple):
    """An answer's tokens and times, seconds of `time.perf_counter`."""

    tokens: int
    came: float
    first: float | None  # token; None: there was none
    last: float
    ended: float

    @property
    def ttft_s(self) -> float | None:
        return None if self.first is None else self.first - self.came

    def itl_s(self, choices: int) -> float:
        """The time from one token of a choice to its next; 0.0: none has two."""
        steps = self.tokens / choices - 1
        return (self.last - self.first) / steps if self.first is not None and steps > 0 else 0.0


def observe(call: GenerationBase, outcome: str, times: AnswerTimes, timelines: Sequence[Timeline]) -> None:
    meters = call.model.meters
    meters.ended(outcome, clock.now(), times.ended - times.came)
    for timeline in timelines:
        if timeline.timings:
            meters.stages(timeline.stages(), timeline.computed)
            if timeline.timings[-1].pulled is not None:
                meters.pulled_bytes.inc(timeline.timings[-1].pulled.size)
    if spans := [timing.cost_s for timeline in timelines for timing in timeline.timings]:
        meters.cost.observe(sum(spans))
    meters.prompt_tokens.observe(call.prompt_tokens)
    if times.ttft_s is not None:
        meters.output_tokens.observe(times.tokens)
        meters.cached_tokens.observe(call.cached_tokens)
        meters.hit_rate.observe(call.cached_tokens / (call.prompt_tokens or 1))
        meters.ttft.observe(times.ttft_s)
        if times.tokens / call.choices > 1 and call.plan.sampling[0].beams is None:  # whose answers come at once
            meters.itl.observe(times.itl_s(call.choices))
