"""CPU of Redis for a placement on a thousand workers, a turn for each line on stdin: run with either tree's code."""

import asyncio
import sys
from typing import Any

import uvloop

from app.store import Wire, async_client
from ops.bench.scale.fleet import fill
from ops.bench.scale.placing import _cost  # its name in the older tree, too


async def _turns(port: int, workers: int, blocks: int, rounds: int) -> None:
    """Milliseconds, a line each."""
    client: Any = async_client(f"redis://127.0.0.1:{port}/0")
    wire = Wire(client)
    conversations = await fill(client, wire, workers, blocks)
    _say("ready")
    while await asyncio.to_thread(sys.stdin.readline):
        _say(str((await _cost(client, wire, conversations, 1, rounds)).redis_ms))
    wire.close()
    await client.aclose()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(_turns(*map(int, sys.argv[1:5])))
