"""The load beside that of `make chaos`: whole answers, clients that leave, embeddings, stored answers, batches."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from app.cli.event_lines import event_lines_async
from tests.chaos.fleet import Fleet
from tests.chaos.load import WORDS

LINES = 60
_PATIENCE_S = 300.0


class Clients:
    """One of each kind, again and again until cancelled. Those that need one API replica throughout use the first."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._rng = fleet, random.Random(seed)
        self._http = httpx.AsyncClient(timeout=_PATIENCE_S)
        self.done = Counter[str]()
        self.wrong: list[str] = []

    async def run(self) -> None:
        kinds = (self._whole, self._leaving, self._embedding, self._stored, self._batch)
        async with self._http, asyncio.TaskGroup() as clients:
            for kind in kinds:
                clients.create_task(self._again(kind))

    async def _again(self, ask: Callable[[], Awaitable[None]]) -> None:
        kind = ask.__name__.removeprefix("_")
        while True:
            try:
                await ask()
            except httpx.TransportError:
                self.done[f"{kind}, broken off"] += 1  # its API replica died
            except (httpx.HTTPStatusError, AssertionError) as exc:
                answer_text = exc.response.text[:200] if isinstance(exc, httpx.HTTPStatusError) else ""
                self.wrong.append(f"{kind}: {exc} {answer_text}")
            else:
                self.done[kind] += 1
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))

    @property
    def _first(self) -> str:
        return self._fleet.urls()[0]

    def _prompt(self) -> str:
        return " ".join(self._rng.choice(WORDS) for _ in range(self._rng.choice((5, 40, 200))))

    def _body(self, **more: Any) -> dict[str, Any]:
        return {"model": "mock", "prompt": self._prompt(), "max_tokens": 50, "ignore_eos": True} | more

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        return (await self._http.post(url, json=body)).raise_for_status().json()

    async def _whole(self) -> None:
        answer = await self._post(f"{self._rng.choice(self._fleet.urls())}/v1/completions", self._body())
        assert answer["usage"]["completion_tokens"] == 50, answer["usage"]

    async def _leaving(self) -> None:
        url, body = f"{self._rng.choice(self._fleet.urls())}/v1/completions", self._body(max_tokens=1000, stream=True)
        async with self._http.stream("POST", url, json=body) as answer:
            answer.raise_for_status()
            remaining_events = self._rng.randrange(20)
            async for _ in event_lines_async(answer):
                if not (remaining_events := remaining_events - 1):
                    return

    async def _embedding(self) -> None:
        url = f"{self._rng.choice(self._fleet.urls())}/v1/embeddings"
        answer = await self._post(url, {"model": "embedder", "input": [self._prompt() for _ in range(4)]})
        assert len(answer["data"]) == 4

    async def _stored(self) -> None:
        """An answer in the background, which is fetched, and deleted or left to expire."""
        body = {"model": "mock", "input": self._prompt(), "max_output_tokens": 50, "background": True, "store": True}
        answer = await self._post(f"{self._first}/v1/responses", body)
        url = f"{self._first}/v1/responses/{answer['id']}"
        answer = await self._ended(url, ("completed", "incomplete", "failed", "cancelled"))
        assert answer["status"] in ("completed", "incomplete"), answer
        if self._rng.random() < 0.5:
            (await self._http.delete(url)).raise_for_status()

    async def _batch(self) -> None:
        """Each line is in its output once. Its files are deleted, for they would outlive the run."""
        body = {"model": "mock", "prompt": "a line", "max_tokens": 20}
        lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body} for i in range(LINES)]
        upload = {"file": ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())}
        upload_answer = await self._http.post(f"{self._first}/v1/files", data={"purpose": "batch"}, files=upload)
        batch_body = {"input_file_id": upload_answer.raise_for_status().json()["id"], "endpoint": "/v1/completions"}
        batch = await self._post(f"{self._first}/v1/batches", batch_body | {"completion_window": "24h"})
        batch = await self._ended(f"{self._first}/v1/batches/{batch['id']}", ("completed", "failed", "expired"))
        assert batch["status"] == "completed", batch
        output = await self._http.get(f"{self._first}/v1/files/{batch['output_file_id']}/content")
        ids = [json.loads(line)["custom_id"] for line in output.raise_for_status().text.splitlines()]
        assert sorted(ids, key=int) == [str(i) for i in range(LINES)], f"{len(ids)} lines, {len(set(ids))} different"
        for file in (batch["input_file_id"], batch["output_file_id"]):
            (await self._http.delete(f"{self._first}/v1/files/{file}")).raise_for_status()

    async def _ended(self, url: str, ends: tuple[str, ...]) -> Any:
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            answer = (await self._http.get(url)).raise_for_status().json()
            if answer["status"] in ends:
                return answer
            await asyncio.sleep(0.5)
        raise AssertionError(f"not ended: {answer}")
