"""Bad input, and what a good picture costs: from `https:` to RGB, and how long the event loop is held meanwhile."""

import asyncio
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from app.media.limits import MediaLimits
from app.media.loader import MediaLoader
from app.media.source import MediaSource
from app.settings import Settings
from ops.bench.loop import watched
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from tests.media.hostile import guards
from tests.media.hostile_cases import CASES
from tests.media.hostile_server import OUTER, Names
from tests.stack import ROOT

_AT_ONCE = 8
_LOOK_S = 0.001  # uvloop takes less for nothing, and would never sleep: the kernel then takes its core away


def measured(_out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`hostile_cases`, `hostile_let_through`, `decode_ms_4mp`, `loop_held_ms`, and what got through."""
    return uvloop.run(_measured(size.of(15, 5, 1), say))


async def _measured(rounds: int, say: Say) -> dict[str, Any]:
    async with guards() as guard:
        through = []
        for number, case in enumerate(CASES):
            say(f"hostile case {number + 1} of {len(CASES)}")
            if (what := await guard.let_through(case)) is not None:
                through.append(f"{case.name}: {what}")
    say("pictures of 4 megapixels")
    decode_times_s, stalls_s, idle_stalls_s = await _times(rounds)
    return {
        "hostile_cases": len(CASES),
        "hostile_let_through": len(through),
        "decode_ms_4mp": 1000 * statistics.median(decode_times_s),
        "loop_held_ms": 1000 * statistics.median(stalls_s),
        "loop_held_idle_ms": 1000 * statistics.median(idle_stalls_s),
        "hostile_through": through,
    }


async def _times(rounds: int) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Seconds from a URL to pixels, one at a time; the longest stall of the loop in each round of eight at once; and in
    as long a time without work, which is the machine's."""
    decode_times_s, stalls_s, idle_stalls_s = [], [], []
    async with _photo() as (loader, source):
        await loader.load_pictures([source] * _AT_ONCE)  # starts the processes
        for _ in range(rounds):
            began = time.perf_counter()
            await loader.load_picture(source)
            decode_times_s.append(time.perf_counter() - began)
        for _ in range(rounds):
            began = time.perf_counter()
            pictures, stall = await watched(loader.load_pictures([source] * _AT_ONCE), _LOOK_S)
            stalls_s.append(stall)
            del pictures
            idle_stalls_s.append((await watched(asyncio.sleep(time.perf_counter() - began), _LOOK_S))[1])
    return decode_times_s, stalls_s, idle_stalls_s


@asynccontextmanager
async def _photo() -> AsyncIterator[tuple[MediaLoader, MediaSource]]:
    """A server of a photo, in another process."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "tests.media.photo_server", name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as server:  # noqa: ASYNC220 (once)
            assert server.stdin is not None
            while not (folder / "port").exists():
                if server.poll() is not None:
                    raise Unavailable("the server of photos did not start")
                await asyncio.sleep(0.05)
            host = f"media.test:{(folder / 'port').read_text()}"
            limits = MediaLimits.of(Settings(media_hosts=host, media_networks=f"{OUTER}/32"))  # type: ignore[arg-type]
            tls = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            loader = MediaLoader(limits, resolve=Names({"media.test": [[OUTER]]}).resolve, tls=tls)
            yield loader, MediaSource("image", "messages.0.content.1", url=f"https://{host}/photo")
            await loader.close()
            server.stdin.close()
