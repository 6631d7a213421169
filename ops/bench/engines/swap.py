"""Answers with old weights after a swap was acknowledged, under load at two API replicas."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from tests.chaos.fleet import Fleet
from tests.lora import tiny_adapter
from tests.stack import mock_pool

_ANSWERS, _QUICK_ANSWERS = 1000, 250
_PER_SWAP = 50  # answers that are looked at after each swap
_CLIENTS = 8
_NAMES = ("one", "two")  # of the weights, which take turns


@dataclass
class _Seen:
    """Answers that the clients saw: when each was asked for, and its text."""

    answers: list[tuple[float, str]] = field(default_factory=list)
    over: bool = False


def swap(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    sources = (out_dir / "sources").resolve()
    paths = {name: str(tiny_adapter(sources / name, f"weights {name}")) for name in _NAMES}
    pool = mock_pool(block_size=16, step_ms=2.0, max_adapters=3, adapter_load_s=0.05)
    env = {"XYLEM_LORA_SOURCES": str(sources), "XYLEM_LORA_STORE": str(out_dir / "store")}
    say("starting two API replicas and two workers")
    try:
        with Fleet(out_dir / "fleet", {"decode-pool-a": pool}, workers=2, forks=size.smallest, **env) as up:
            return asyncio.run(_swapped(up.urls(), paths, size.of(_ANSWERS, _QUICK_ANSWERS, _PER_SWAP), say))
    except (httpx.HTTPError, AssertionError) as exc:
        raise Unavailable(f"swap: {exc!r}") from exc


async def _swapped(urls: list[str], paths: dict[str, str], wanted: int, say: Say) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=90) as http:
        expected_texts = {name: await _text_of(http, urls[0], name, path) for name, path in paths.items()}
        if len(set(expected_texts.values())) < len(expected_texts):
            raise Unavailable("both weights give the same answer")
        await _admin(http, urls[0], "", name="hot", source=paths["one"], model="mock", min_workers=2)
        await asyncio.sleep(1.5)  # until the other replica knows it
        record = _Seen()
        clients = [asyncio.create_task(_ask_on(http, urls[i % len(urls)], record)) for i in range(_CLIENTS)]
        fresh = stale = swaps = 0
        try:
            while fresh + stale < wanted:
                say(f"swap {swaps + 1}: {fresh + stale} of {wanted} answers")
                swaps += 1
                name = _NAMES[swaps % len(_NAMES)]
                await _admin(http, urls[swaps % len(urls)], "/hot", source=paths[name])
                swap_end, before = time.monotonic(), len(record.answers)
                texts: list[str] = []
                while len(texts) < _PER_SWAP:
                    await asyncio.sleep(0.01)
                    for client in clients:
                        if client.done():
                            client.result()
                    texts = [text for began, text in record.answers[before:] if began > swap_end]
                stale += sum(text != expected_texts[name] for text in texts)
                fresh += sum(text == expected_texts[name] for text in texts)
        finally:
            record.over = True
            await asyncio.gather(*clients, return_exceptions=True)
        for client in clients:
            client.result()
    return {"swap": {"swaps": swaps, "answers": fresh + stale, "all_answers": len(record.answers)}, "swap_stale": stale}


async def _ask_on(http: httpx.AsyncClient, url: str, seen: _Seen) -> None:
    while not seen.over:
        began = time.monotonic()
        seen.answers.append((began, await _ask(http, url, "hot")))


async def _ask(http: httpx.AsyncClient, url: str, model: str) -> str:
    """Raises: httpx.HTTPError."""
    prompt = "A story of a cat, please, and long enough to fill some blocks of the prefix cache."
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = await http.post(f"{url}/v1/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


async def _text_of(http: httpx.AsyncClient, url: str, name: str, path: str) -> str:
    """The answer with these weights, from an adapter that has no others."""
    await _admin(http, url, "", name=f"sure-{name}", source=path, model="mock")
    text = await _ask(http, url, f"sure-{name}")
    (await http.delete(f"{url}/admin/loras/sure-{name}")).raise_for_status()
    return text


async def _admin(http: httpx.AsyncClient, url: str, path: str, **body: Any) -> None:
    """Raises: httpx.HTTPError, Unavailable."""
    answer = await http.post(f"{url}/admin/loras{path}", json=body)
    answer.raise_for_status()
    if not answer.json()["workers"]:
        raise Unavailable(f"no worker has the adapter: {answer.text[:300]}")
