"""Clients that never stop asking, know what they must be answered, and say what they got instead."""

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.cli.event_lines import event_lines_async
from tests.chaos.fleet import Fleet
from tests.pictures import asked, png

_PATIENCE_S = 120.0  # for one answer, whatever happens
WORDS = [
    "river",
    "stone",
    "lantern",
    "harbour",
    "winter",
    "orchard",
    "signal",
    "meadow",
    "copper",
    "garden",
    "thunder",
    "letter",
]


@dataclass(frozen=True)
class Case:
    """One request, and the answer that an undisturbed fleet gave to it."""

    path: str
    body: dict[str, Any]
    expected: "Seen | None" = None


@dataclass
class Seen:
    """The parts of one answer that a client has."""

    texts: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, list[str]] = field(default_factory=dict)  # as logprobs spell them
    finishes: dict[int, list[str]] = field(default_factory=dict)
    usages: list[int] = field(default_factory=list)  # completion tokens
    told: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # id → tokens: prompt, cached, completion
    ends: int = 0  # [DONE]
    errors: list[str] = field(default_factory=list)

    def same(self, other: "Seen") -> bool:
        return (self.texts, self.tokens, self.finishes, self.usages, self.ends, self.errors) == (
            other.texts, other.tokens, other.finishes, other.usages, other.ends, other.errors,
        )  # fmt: skip


@dataclass(eq=False)
class Asked:
    """One request on its way: when something of it came."""

    case: Case
    seen: Seen = field(default_factory=Seen)
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    resumed: int = 0  # by a new connection, where the old one had been
    restarted: int = 0  # by a new request, since the API replica died and nothing else had been asked for


def make_cases(model: str, count: int, rng: random.Random) -> list[Case]:
    """Streams of all kinds, short and long, sampled and greedy, alone and with several choices."""
    cases = []
    for number in range(count):
        prompt = f"{number} " + " ".join(rng.choice(WORDS) for _ in range(rng.choice((5, 40, 200))))
        sampling: dict[str, Any] = {
            "model": model,
            "max_tokens": rng.choice((1, 20, 80, 200)),
            "temperature": rng.choice((0, 1)),
            "seed": rng.randrange(1000),
            "n": rng.choice((1, 1, 1, 3)),
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        if sampling["temperature"] == 0:
            sampling["n"] = 1
        if number % 3 == 0:
            sampling["frequency_penalty"] = 0.5
        if number % 2:
            body = sampling | {"messages": [{"role": "user", "content": prompt}], "logprobs": True, "top_logprobs": 0}
            cases.append(Case("/v1/chat/completions", body))
        else:
            cases.append(Case("/v1/completions", sampling | {"prompt": prompt, "logprobs": 0}))
    return cases


_NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 60}
_TOOL = {
    "name": "count",
    "parameters": {"type": "object", "properties": {"numbers": _NUMBERS}, "required": ["numbers"]},
}


def make_structured_cases(
    model: str, count: int, rng: random.Random, *, temperature: float = 1, most: Sequence[int] = (100, 400)
) -> list[Case]:
    """Streams that a grammar holds: to a schema, a pattern, or calls of a tool. `most`: tokens, one of these."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"response_format": {
            "type": "json_schema", "json_schema": {"name": "numbers", "schema": _NUMBERS},
        }}),
        ("/v1/completions", {"guided_regex": "([a-z]{2,9} ){30,90}"}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": _TOOL}], "tool_choice": "required"}),
    ]  # fmt: skip
    cases = []
    for number in range(count):
        path, constraint = kinds[number % len(kinds)]
        prompt = f"{number} " + " ".join(rng.choice(WORDS) for _ in range(rng.choice((5, 40))))
        is_chat = path.endswith("chat/completions")
        prompt_fields = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        sampling = {"max_tokens": rng.choice(most), "temperature": temperature, "seed": rng.randrange(1000)}
        stream_fields = {"stream": True, "stream_options": {"include_usage": True}}
        cases.append(Case(path, {"model": model} | prompt_fields | sampling | stream_fields | constraint))
    return cases


def make_picture_cases(model: str, count: int, rng: random.Random) -> list[Case]:
    """Streams about one or two pictures, of which some are in several."""
    cases = []
    for _ in range(count):
        pictures = [png(rng.randrange(6), *rng.choice(((120, 90), (64, 64)))) for _ in range(rng.choice((1, 2)))]
        sampling = {"max_tokens": rng.choice((20, 80, 200)), "temperature": 1, "seed": rng.randrange(1000)}
        stream_fields = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 0}
        prompt_fields = {
            "messages": asked(*pictures, text=" ".join(rng.choice(WORDS) for _ in range(rng.choice((5, 40)))))
        }
        body = {"model": model, "ignore_eos": True} | prompt_fields | sampling | stream_fields
        cases.append(Case("/v1/chat/completions", body))
    return cases


class Load:
    """A closed loop: each client asks anew when it has its answer."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._rng = fleet, random.Random(seed)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(_PATIENCE_S, connect=5), limits=limits)
        self.cases: list[Case] = []
        self.running: set[Asked] = set()
        self.done: list[Asked] = []
        self._stop = False
        self._clients: list[asyncio.Task[None]] = []

    async def learn(self, cases: list[Case]) -> None:
        """Asks each case once, undisturbed."""
        for case in cases:
            request = Asked(case)
            await self._ask(request)
            assert (request.seen.ends, request.seen.errors) == (1, []), request.seen
            self.cases.append(Case(case.path, case.body, request.seen))
        self.done.clear()

    def start(self, clients: int) -> None:
        self._clients = [asyncio.create_task(self._client()) for _ in range(clients)]

    async def finish(self) -> None:
        """No more requests; returns when the last has its answer."""
        self._stop = True
        await asyncio.gather(*self._clients)
        await self._http.aclose()

    async def _client(self) -> None:
        while not self._stop:
            request = Asked(self._rng.choice(self.cases))
            self.running.add(request)
            try:
                await self._ask(request)
            finally:
                self.running.discard(request)
            await asyncio.sleep(self._rng.uniform(0, 0.1))

    async def _ask(self, asked: Asked) -> None:
        """Asks to the end, over as many connections as it takes: replicas may die, and a client has others."""
        key, last_id, deadline = uuid.uuid4().hex, "", time.monotonic() + _PATIENCE_S
        resumable = self._rng.random() < 0.5
        asked.times.append(time.monotonic())
        while time.monotonic() < deadline:
            url = self._rng.choice(self._fleet.urls()) + asked.case.path
            headers = {"idempotency-key": key} if resumable else {}
            if last_id:
                headers["last-event-id"] = last_id
            try:
                async with self._http.stream("POST", url, json=asked.case.body, headers=headers) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        asked.seen.errors.append(f"{answer.status_code} {answer.text[:200]}")
                        break
                    async for line in event_lines_async(answer):
                        if line.startswith("id:"):
                            last_id = line[3:].strip()
                        elif line.startswith("data:"):
                            self._take(asked, line[5:].strip())
                if asked.seen.ends or asked.seen.errors:
                    break
            except httpx.TransportError:
                pass  # the replica died, or is only being started
            if resumable:
                asked.resumed += 1
            else:
                asked.restarted += asked.seen.texts != {}
                asked.seen = Seen()
            await asyncio.sleep(0.1)
        asked.ended = time.monotonic()
        self.done.append(asked)

    def _take(self, asked: Asked, data: str) -> None:
        answer = asked.seen
        asked.times.append(time.monotonic())
        if data == "[DONE]":
            answer.ends += 1
            return
        chunk = json.loads(data)
        if "error" in chunk:
            answer.errors.append(f"{chunk['error'].get('code')}: {chunk['error'].get('message')}")
            return
        if chunk.get("usage"):
            usage = chunk["usage"]
            answer.usages.append(usage["completion_tokens"])
            cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
            answer.told[chunk["id"]] = usage["prompt_tokens"], cached_tokens, usage["completion_tokens"]
        for choice in chunk["choices"]:
            index, logprobs = choice["index"], choice.get("logprobs") or {}
            text = choice["text"] if "text" in choice else _said(choice["delta"])
            answer.texts[index] = answer.texts.get(index, "") + text
            tokens = logprobs.get("tokens") or [t["token"] for t in logprobs.get("content") or ()]
            answer.tokens.setdefault(index, []).extend(tokens)
            if choice.get("finish_reason"):
                answer.finishes.setdefault(index, []).append(choice["finish_reason"])


def _said(delta: dict[str, Any]) -> str:
    """Calls too, but for their ids, which differ from request to request."""
    functions = [call["function"] for call in delta.get("tool_calls") or ()]
    calls = [f"{function.get('name', '')}{function.get('arguments', '')}" for function in functions]
    return "".join([delta.get("content") or "", *calls])
