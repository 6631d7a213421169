"""A simulated worker, step by step, with the timing of Dynamo 1.6.1's mocker: its steps were timed on tiny traces.

A step prefills waiting prompts, first come, first served, up to `BUDGET` tokens, and makes a token for each running
request. It takes `a + b * T + c * T²` for T tokens to prefill and `d + e * p - f * p²` where the running requests fill
the share p of the KV cache. Steps without a prefill are taken many at a time: a day in seconds.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

SEATS = 256
BUDGET = 8192
KV_BLOCKS = 2048  # so that 1, 2 and 3 workers attain on the day what ../shared/OPERATIONS.md says
KV_TOKENS = KV_BLOCKS * 64


@dataclass(slots=True)
class Request:
    """One of a trace. Times in seconds; `answer`: tokens."""

    at: float
    prompt: int
    answer: int
    first: float = -1.0
    last: float = -1.0

    def met(self, ttft_s: float, itl_s: float) -> bool:
        if self.last < 0 or self.first - self.at > ttft_s:
            return False
        return self.answer < 2 or (self.last - self.first) / (self.answer - 1) <= itl_s


def prefill_s(tokens: int) -> float:
    return (16.502 + 0.015183 * tokens + 4.21e-7 * tokens**2) / 1000


def decode_s(kv_tokens: float) -> float:
    p = min(1.0, kv_tokens / KV_TOKENS)
    return (5.74 + 54.01 * p - 25.74 * p * p) / 1000


@dataclass(slots=True)
class Measured:
    """Sums that a worker measures of its speed."""

    prefilled: int = 0  # tokens
    prefilling_s: float = 0.0
    steps: float = 0.0  # of decoding, and sums over them
    k: float = 0.0
    k2: float = 0.0
    s: float = 0.0
    ks: float = 0.0


@dataclass(slots=True, eq=False)
class Worker:
    """`kind`: both; prefill: a request ends with its first token; decode: its prompt is there."""

    ready_at: float
    measured: Measured
    kind: str = "both"
    draining: bool = False
    now: float = 0.0
    step: int = 0
    kv: float = 0.0
    queued: int = 0  # prompt tokens
    waiting: deque = field(default_factory=deque)
    running: list = field(default_factory=list)  # heap of (last step, number, request)
    ended: list = field(default_factory=list)
    number: int = 0

    def add(self, request: Request) -> None:
        self.waiting.append([request, request.prompt if self.kind != "decode" else 0])
        self.queued += self.waiting[-1][1]

    def load(self) -> float:
        """Seconds of work in the next step or two: what a router compares."""
        if self.kind == "decode":
            return len(self.running) + len(self.waiting)
        return 0.015183e-3 * self.queued + 54.01e-3 * self.kv / KV_TOKENS

    def advance(self, until: float) -> None:
        """Steps that begin before `until`."""
        self.now = max(self.now, self.ready_at)
        while self.now < until:
            if self.waiting and len(self.running) < SEATS and self.kv + self.waiting[0][0].prompt <= KV_TOKENS:
                self._prefill()
            elif self.running:
                self._decode(until)
            else:
                self.now = until
            while self.running and self.running[0][0] <= self.step:
                request = heapq.heappop(self.running)[2]
                request.last = self.now
                self.kv -= request.prompt + request.answer
                self.ended.append(request)

    def _prefill(self) -> None:
        k, room, tokens, kv = len(self.running), BUDGET - len(self.running), 0, self.kv
        first = []
        while self.waiting and room > 0 and k + len(first) < SEATS:
            head = self.waiting[0]
            if kv + head[0].prompt > KV_TOKENS:
                break
            kv += head[0].prompt
            part = min(room, head[1])
            head[1] -= part
            room -= part
            tokens += part
            if head[1]:
                break
            first.append(self.waiting.popleft()[0])
        self.queued -= tokens
        took = prefill_s(tokens) if tokens else 0.0
        self.measured.prefilled += tokens
        self.measured.prefilling_s += took
        if k:
            step = decode_s(self.kv)
            took += step
            self._count(k, 1, step)
        self.now += took
        self.step += 1
        self.kv += k
        for request in first:
            if request.first < 0:
                request.first = self.now
            if self.kind == "prefill" or request.answer < 2:
                request.last = self.now
                self.ended.append(request)
            else:
                self.number += 1
                self.kv += request.prompt + 1
                heapq.heappush(self.running, (self.step + request.answer - 1, self.number, request))

    def _decode(self, until: float) -> None:
        k = len(self.running)
        step = decode_s(self.kv)
        most = min(self.running[0][0] - self.step, int((until - self.now) / step) + 1)
        step = decode_s(self.kv + k * (most - 1) / 2)
        self.now += most * step
        self.step += most
        self.kv += k * most
        self._count(k, most, step)

    def _count(self, k: int, steps: int, step_s: float) -> None:
        m = self.measured
        m.steps += steps
        m.k += steps * k
        m.k2 += steps * k * k
        m.s += steps * step_s
        m.ks += steps * k * step_s
