"""Photos on their way to the engine: what they take of Redis, and when the first token comes.

The mock engine, with the files of a model that sees: nothing but the way of the pixels takes time.
"""

import asyncio
import base64
import io
import json
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import redis
from PIL import Image

from ops.bench.load import System
from ops.bench.older import tree
from ops.bench.parts import Say
from ops.bench.piped import in_turns
from ops.bench.processes import Unavailable
from ops.bench.rows.cpu import BEFORE
from ops.bench.size import LEFT_OUT, Size
from ops.bench.systems import xylem
from tests.vlm import random_vlm

_WIDTH, _HEIGHT = 4000, 3000
_PAIRS, _FEW = 14, 4
_EACH = 3  # requests of a side in a turn
_ENV = {"XYLEM_MEDIA_HELD": str(2**32), "XYLEM_INCOMING_BYTES": str(2**32)}
_LONG = {"max_tokens": 4000, "ignore_eos": True}  # until all others have a first token
_LIMIT_S = 600.0


def photos(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Redis' growth at its peak under many photos at once, and the time of one's first token. Raises: Unavailable."""
    pool = {
        "model": "bench",
        "engine": "mock",
        "path": str(random_vlm("idefics3", weights=False)),
        "block_size": 16,
        "max_running": 256,
        "max_model_len": 8192,
        "args": {"step_ms": 20.0, "prefill_tokens_per_s": 1e6},
    }
    count = size.of(50, 16, 2)
    with xylem(directory / "new", pool, 2, more_env=_ENV) as new:
        say(f"{count} photos at once")
        growth = asyncio.run(_growth(new, count))
        outcome = {"photos_redis_mb": growth / 1e6}
        if size.smallest:
            return outcome | {"missing": {"photos_ttft_ratio": f"{LEFT_OUT}an older tree"}}
        with tree(directory / "before", BEFORE) as before, xylem(directory / "old", pool, 2, before, _ENV) as old:
            outcome["photos_redis_mb_before"] = asyncio.run(_growth(old, count)) / 1e6
            pairs = in_turns(
                size.of(_PAIRS, _FEW, 1), lambda turn: _ttft_s(new, turn), lambda turn: _ttft_s(old, turn), say
            )
    ratios = [new_s / old_s for new_s, old_s in pairs]
    return outcome | {
        "photos_ttft_ratio": median(ratios),
        "photos_ttft_ratio_values": ratios,
        "photos_ttft_ms": 1000 * median(new_s for new_s, _ in pairs),
        "photos_ttft_ms_before": 1000 * median(old_s for _, old_s in pairs),
    }


def _photo(number: int) -> bytes:
    """A JPEG of 12 megapixels and 3 to 5 MB, another for each number."""
    noise = Image.effect_noise((_WIDTH // 8, _HEIGHT // 8), 80)
    noise.putpixel((0, 0), number % 256)
    noise = noise.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    Image.merge("RGB", (noise, noise.rotate(90), noise.rotate(180))).save(out, "JPEG", quality=90)
    if not 3e6 <= out.tell() <= 5e6:
        raise Unavailable(f"a photo has {out.tell()} bytes")
    return out.getvalue()


def _body(system: System, number: int, **fields: Any) -> bytes:
    url = "data:image/jpeg;base64," + base64.b64encode(_photo(number)).decode()
    content = [{"type": "text", "text": f"What is photo {number}?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": system.model, "messages": messages, "stream": True, **fields}).encode()


def _ttft_s(system: System, turn: int) -> float:
    """The median of some requests, one after the other, each with a photo of its own."""
    bodies = [_body(system, turn * _EACH + number, max_tokens=4) for number in range(_EACH)]
    return median(asyncio.run(_firsts(system, [body])) for body in bodies)


async def _firsts(system: System, bodies: Sequence[bytes]) -> float:
    """Seconds until the first token of all has come: no stream ends before. Raises: Unavailable."""
    barrier = asyncio.Barrier(len(bodies))
    began = time.perf_counter()
    async with httpx.AsyncClient(timeout=_LIMIT_S, limits=httpx.Limits(max_connections=None)) as client:

        async def first(body: bytes) -> float:
            headers = {"content-type": "application/json"}
            async with client.stream(
                "POST", f"{system.url}/v1/chat/completions", content=body, headers=headers
            ) as answer:
                if answer.status_code != 200:
                    raise Unavailable(f"a photo was refused: {(await answer.aread())[:300]!r}")
                async with aclosing(answer.aiter_lines()) as lines:
                    async for line in lines:
                        if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                            at = time.perf_counter() - began
                            await barrier.wait()
                            return at
            raise Unavailable("a stream ended without a token")

        async with asyncio.timeout(_LIMIT_S):
            return max(await asyncio.gather(*map(first, bodies)))


async def _growth(system: System, count: int) -> float:
    """Bytes of Redis at its peak above those before, with so many photos whose requests are all in progress at once."""
    bodies = [_body(system, 1000 + number, **_LONG) for number in range(count)]
    client = redis.Redis.from_url(system.redis_url)
    before = int(client.info("memory")["used_memory"])
    await _firsts(system, bodies)
    peak = int(client.info("memory")["used_memory_peak"])
    client.close()
    return max(0, peak - before)
