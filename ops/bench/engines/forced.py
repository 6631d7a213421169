"""Answers token by token, and what the engine that serves now would rather have said at each of these tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from ops.bench.events import events
from ops.bench.processes import Unavailable

_LIMIT_S = 900.0


@dataclass
class Begun:
    """An answer, as far as it has come."""

    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""


def streamed(url: str, prompt: str, tokens: int, into: Begun) -> None:
    """Blocks until the end. Raises: Unavailable."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=_LIMIT_S) as answer:
        for event in events(answer):
            for choice in event["choices"]:
                into.text += choice["text"]
                into.prompt = choice.get("prompt_token_ids") or into.prompt
                into.tokens += choice.get("token_ids") or []
    if len(into.tokens) != tokens:
        raise Unavailable(f"an answer has {len(into.tokens)} of {tokens} tokens")


def forced_gaps(url: str, answers: Sequence[Begun]) -> list[float]:
    """The gap of each token of each answer: its logprob below that of the likeliest one. Raises: Unavailable."""
    gaps: list[float] = []
    for answer in answers:
        body = {"model": "bench", "prompt": [*answer.prompt, *answer.tokens], "max_tokens": 1, "temperature": 0}
        response = httpx.post(f"{url}/v1/completions", json=body | {"prompt_logprobs": 1}, timeout=_LIMIT_S)
        if not response.is_success:
            raise Unavailable(f"prompt logprobs: {response.text[:200]}")
        scores = response.json()["choices"][0]["prompt_logprobs"][len(answer.prompt) :]
        gaps += [gap(token, of) for token, of in zip(answer.tokens, scores, strict=True)]
    return gaps


def gap(token: int, scores: dict[str, dict[str, float]]) -> float:
    """The difference from the likeliest token's logprob down to this one's; `scores` as in `prompt_logprobs`."""
    return max(score["logprob"] for score in scores.values()) - scores[str(token)]["logprob"]
