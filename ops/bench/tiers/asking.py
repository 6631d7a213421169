"""Prompts of token ids, each of them a new one, and what their answers tell."""

import json
import time
from dataclasses import dataclass
from random import Random

import httpx

from ops.bench.events import cached_of, events
from ops.bench.processes import Unavailable

_TOKENS = (1_000, 2_000)  # ids, which every vocabulary has


@dataclass(frozen=True)
class Answer:
    text: str
    ttft_s: float
    whole_s: float
    prompt_tokens: int
    cached_tokens: int
    stored_blocks: int  # that its worker had in the store and nowhere else, if the client has asked for reasons


def prompt(seed: int, tokens: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(*_TOKENS) for _ in range(tokens)]


def ask(client: httpx.Client, model: str, ids: list[int], max_tokens: int = 8) -> Answer:
    """Raises: Unavailable if there is no whole answer."""
    body = {
        "model": model, "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    began, ttft_s, text, usage = time.perf_counter(), 0.0, "", None
    route: dict[str, int] = {}
    try:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            if "x-xylem-route" in answer.headers:
                (route,) = json.loads(answer.headers["x-xylem-route"])
            for event in events(answer):
                usage = event.get("usage") or usage
                if event["choices"]:
                    ttft_s = ttft_s or time.perf_counter() - began
                    text += event["choices"][0]["text"]
    except httpx.HTTPError as exc:
        raise Unavailable(f"a prompt got no answer: {exc!r}") from exc
    if usage is None:
        raise Unavailable("/v1/completions ended without usage")
    whole_s = time.perf_counter() - began
    return Answer(text, ttft_s, whole_s, usage["prompt_tokens"], cached_of(usage), route.get("blocks_in_store", 0))
