"""Sends a trace's requests at their times, whatever the server does: an open loop, with bounds."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from app.cli.replaying.prompts import Prompts
from app.cli.replaying.sending import Outcome, Sender
from app.cli.trace import Request

_FAILURES = 100  # one after the other: nothing is learned from more

Chain = tuple[float, list[tuple[int, Request]]]  # when it begins, ms; requests, each after the answer before


def chains(requests: Sequence[Request]) -> list[Chain]:
    """Chains by their beginnings, the first at 0. Only requests without a time of their own follow another."""
    all_chains: list[Chain] = []
    of_session: dict[int | str, Chain] = {}
    for number, request in enumerate(requests):
        if request.timestamp is None:
            assert request.session_id is not None
            of_session[request.session_id][1].append((number, request))
            continue
        chain = request.timestamp, [(number, request)]
        all_chains.append(chain)
        if request.session_id is not None:
            of_session[request.session_id] = chain
    all_chains.sort(key=lambda chain: chain[0])
    first = all_chains[0][0]
    return [(begins - first, steps) for begins, steps in all_chains]


class Player:
    def __init__(self, sender: Sender, prompts: Prompts, *, speed: float, seconds: float, most: int) -> None:
        """No request begins after `seconds`, or when `most` are in flight: then the replay has failed and ends."""
        self._sender, self._prompts = sender, prompts
        self._speed, self._seconds, self._most = speed, seconds, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._ended = asyncio.Event()
        self.outcomes: list[Outcome] = []
        self.in_flight = 0
        self.errors: Counter[str] = Counter()
        self.stopped = ""  # why, before its end
        self.started = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def stop(self, why: str) -> None:
        """Nothing more is sent, and what runs is given up."""
        self.stopped = self.stopped or why
        self._ended.set()
        for task in self._tasks:
            task.cancel()

    async def run(self, chains: Sequence[Chain]) -> None:
        """Plays the chains, and returns when all have been answered."""
        self.started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for begins, steps in chains:
                due = begins / 1000 / self._speed
                text = self._text(steps[0])  # before its time has come
                if due > self._seconds or not await self._wait(due):
                    break
                task = group.create_task(self._play(due, text, steps))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _wait(self, due: float) -> bool:
        """Whether the replay goes on at that time."""
        remaining_s = due - self.elapsed
        if remaining_s > 0:
            try:
                await asyncio.wait_for(self._ended.wait(), remaining_s)
            except TimeoutError:
                pass
        elif len(self.outcomes) % 16 == 0:
            await asyncio.sleep(0)  # far behind: answers are read all the same
        return not self._ended.is_set()

    def _text(self, step: tuple[int, Request]) -> str:
        number, request = step
        return self._prompts.text(request, number)

    async def _play(self, due: float, text: str, steps: Sequence[tuple[int, Request]]) -> None:
        """`text`: the first prompt."""
        for i, (_number, request) in enumerate(steps):
            if i:
                text, due = self._text(steps[i]), self.elapsed + (request.delay or 0) / 1000 / self._speed
                if due > self._seconds or not await self._wait(due):
                    return
            if self.in_flight >= self._most:
                self.stop(f"{self._most} requests are in flight: the server doesn't keep up (--max-in-flight)")
                return
            outcome = Outcome(request.input_length, request.output_length, due)
            self.outcomes.append(outcome)
            self.in_flight += 1
            try:
                await self._sender.send(text, outcome, self.started)
            finally:
                self.in_flight -= 1
                self._count(outcome)

    def _count(self, outcome: Outcome) -> None:
        if not outcome.error:
            self._failures = 0
            return
        self.errors[outcome.error[:200]] += 1
        self._failures += 1
        if self._failures >= _FAILURES and not self.stopped:
            self.stop(f"{_FAILURES} requests failed one after the other")
