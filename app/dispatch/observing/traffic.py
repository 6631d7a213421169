"""Counts each model's requests in windows, while a planner wants it. Nothing here is done for each token."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import InFlight
from app.errors import OK, Cancelled, StoreDown
from app.ids import ApiId
from app.keys import Keys
from app.messages.events import Done
from app.planner.observed import EDGES, TRAFFIC_WINDOW_S, Histogram, Objective, Traffic
from app.running.loops import keep
from app.store import Command, Wire, clock

_TTL_S = 300
_SOON_S = 0.001  # after a window's end: timers may be early
_encode = msgspec.msgpack.Encoder().encode


class _Count:
    """The counts of one model in one window."""

    __slots__ = ("answer_tokens", "answers", "arrivals", "ended", "met", "prompt_tokens", "prompts")

    def __init__(self) -> None:
        self.arrivals = self.ended = self.met = self.prompt_tokens = self.answer_tokens = 0
        self.prompts, self.answers = [0] * (len(EDGES) + 1), [0] * (len(EDGES) + 1)

    def told(self, begin: float) -> Traffic:
        prompts, answers = Histogram(self.prompts, self.prompt_tokens), Histogram(self.answers, self.answer_tokens)
        return Traffic(begin, TRAFFIC_WINDOW_S, self.arrivals, prompts, answers=answers, met=self.met, ended=self.ended)


class TrafficCounter:
    """The counter of each model's requests. While no planner runs, a request costs two comparisons."""

    def __init__(self, wire: Wire, keys: Keys, api: ApiId, objectives: Mapping[str, Objective]) -> None:
        """`objectives`: by model; others are not counted."""
        self._wire, self._keys, self._api, self._objectives = wire, keys, api, objectives
        self._wanted = False
        self.counts: dict[str, _Count] | None = None  # None: this window has begun without it

    @property
    def question(self) -> Command:
        """Asks Redis whether a planner wants it."""
        return "GET", self._keys.planning()

    def answered(self, raw: bytes | StoreDown | None) -> None:
        """The reply to `question`. A user without the right to read it: nothing is counted."""
        self._wanted = isinstance(raw, bytes)

    def came(self, plan: GenerationPlan) -> None:
        """A request is to be answered."""
        if self.counts is not None and (entry := self._counted(self.counts, plan)) is not None:
            entry[0].arrivals += len(plan.prompts)

    def ended(
        self,
        plan: GenerationPlan,
        outcome: str,
        prompts: Sequence[InFlight],
        ends: Iterable[Done],
        ttft_s: float | None,
        itl_s: float,
    ) -> None:
        """A request has ended. `ends`: those of its `prompts` that were answered. `ttft_s`: None: it had no token."""
        if self.counts is None or outcome == Cancelled.code or (entry := self._counted(self.counts, plan)) is None:
            return
        count, objective = entry
        cached_tokens = {each.request: each.cached_tokens for each in ends}
        for inflight in prompts:
            if inflight.job.request not in cached_tokens:
                continue
            computed_tokens = max(0, len(inflight.job.prompt) - cached_tokens[inflight.job.request])
            answer = sum(len(out.tokens) for out in inflight.out)
            count.prompts[bisect_left(EDGES, computed_tokens)] += 1
            count.prompt_tokens += computed_tokens
            count.answers[bisect_left(EDGES, answer)] += 1
            count.answer_tokens += answer
        count.ended += 1
        if outcome == OK and ttft_s is not None and ttft_s <= objective.ttft_s and itl_s <= objective.itl_s:
            count.met += 1

    async def run(self) -> None:
        """Writes each window at its end, until cancelled."""
        await keep("traffic_not_told", self._window, 0)

    async def _window(self) -> None:
        """Raises: StoreDown; then the planner sees less traffic than there was."""
        number, over_s = divmod(clock.now(), TRAFFIC_WINDOW_S)
        await asyncio.sleep(TRAFFIC_WINDOW_S - over_s + _SOON_S)
        counts, self.counts = self.counts, {} if self._wanted else None
        if counts is not None:
            await self._write(int(number), counts)

    async def _write(self, number: int, counts: Mapping[str, _Count]) -> None:
        """Raises: StoreDown."""
        key, begin = self._keys.traffic(number), number * TRAFFIC_WINDOW_S
        reports = {model: count.told(begin) for model, count in counts.items()}
        await self._wire.execute([("HSET", key, self._api, _encode(reports)), ("EXPIRE", key, _TTL_S)])

    def _counted(self, counts: dict[str, _Count], plan: GenerationPlan) -> tuple[_Count, Objective] | None:
        """The counts and the objective of a request's model; None: it isn't counted.

        No workers are planned for aside requests.
        """
        model = plan.model.parent or plan.model.name
        objective = None if plan.aside else self._objectives.get(model)
        if objective is None:
            return None
        count = counts.get(model)
        if count is None:
            count = counts[model] = _Count()
        return count, objective
