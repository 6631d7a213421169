"""Batches with a line that kills each batch worker that begins it, and what became of all their lines."""

import asyncio
import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from tests.chaos.fleet import Fleet
from tests.poison import READER, RENDERER

_PATH = "/v1/chat/completions"
_PATIENCE_S = 240.0  # for the end of all batches: six starts of a batch worker for each, while nothing else is done
_LINES, _TOKENS = 70, 20  # more lines than a part has


@dataclass(frozen=True)
class Poisoned:
    """A batch as it was submitted."""

    id: str
    lines: int
    deadly: int  # the number of the line, from 0
    tokens: int  # of each other line's answer


async def submitted(fleet: Fleet, rng: random.Random) -> Poisoned:
    """Its line kills whoever reads the input, or whoever begins the line. Raises: TimeoutError."""
    deadly = rng.randrange(_LINES)
    texts = [f"story {rng.randrange(10**6)}" for _ in range(_LINES)]
    texts[deadly] = rng.choice((READER, RENDERER))
    rest = {"model": "mock", "max_tokens": _TOKENS, "ignore_eos": True}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": _PATH,
         "body": rest | {"messages": [{"role": "user", "content": text}]}}
        for number, text in enumerate(texts)
    ]  # fmt: skip
    raw = "\n".join(map(json.dumps, lines)).encode()
    async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(90):

        async def posted(path: str, **content: Any) -> str:
            while True:
                with suppress(httpx.TransportError):  # the replica is only being started
                    answer = await client.post(f"{rng.choice(fleet.urls())}{path}", **content)
                    if answer.status_code == 200:
                        return str(answer.json()["id"])
                await asyncio.sleep(0.1)

        file = await posted("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", raw)})
        body = {"input_file_id": file, "endpoint": _PATH, "completion_window": "24h"}
        batch = await posted("/v1/batches", json=body)
    return Poisoned(batch, _LINES, deadly, _TOKENS)


def wrong_lines(fleet: Fleet, batches: Iterable[Poisoned]) -> list[tuple[str, str]]:
    """Lines as `judged` gives them, of all batches of a fleet, when each has ended or patience has."""
    end = time.monotonic() + _PATIENCE_S
    return [wrong for batch in batches for wrong in judged(batch, *_ended(fleet, batch, end))]


def _ended(fleet: Fleet, batch: Poisoned, until: float) -> tuple[str, list[dict[str, Any]]]:
    """Its status, and its results."""
    with httpx.Client(base_url=fleet.urls()[0], timeout=60) as client:
        while True:
            fleet.restart_ended()
            answer = client.get(f"/v1/batches/{batch.id}").json()
            if answer.get("status") in ("completed", "failed") or time.monotonic() > until:
                break
            time.sleep(0.2)
        files = [answer.get(name) for name in ("output_file_id", "error_file_id")]
        texts = [client.get(f"/v1/files/{file}/content").text for file in files if file]
    return str(answer.get("status", answer)), [json.loads(line) for text in texts for line in text.splitlines()]


def judged(batch: Poisoned, status: str, results: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Lines whose one result is not what it should be: 'lost', 'duplicated' or 'failed', and the results that came."""
    for line in range(batch.lines):
        line_results = [result for result in results if _number(result) == line]
        if len(line_results) == 1 and _is_right(batch, line, line_results[0]):
            continue
        kind = "failed" if len(line_results) == 1 else "duplicated" if line_results else "lost"
        which = "deadly line" if line == batch.deadly else "line"
        yield kind, f"{which} {line} of {batch.id}, {status}: {str(line_results)[:300]}"


def _number(result: dict[str, Any]) -> int:
    """The number of a result's line, from 0. A line that nobody could read has no `custom_id`."""
    return int(result["error"]["line"]) - 1 if result["custom_id"] is None else int(result["custom_id"])


def _is_right(batch: Poisoned, line: int, result: dict[str, Any]) -> bool:
    error = result["error"]
    if line == batch.deadly:
        return bool(error) and error["code"] == "worker_lost"
    return not error and result["response"]["body"]["usage"]["completion_tokens"] == batch.tokens
