"""Commands to workers that can't wait behind requests, and what these reply."""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, cast

from redis.asyncio import Redis

from app.ids import WorkerId
from app.intervals import COMMANDS_TTL_S
from app.keys import Keys
from app.messages.commands import Reply, WorkerCommand, decode_reply
from app.messages.wire import encode

Command = Callable[[str], WorkerCommand]  # makes one with the given id


async def replies(
    redis: "Redis", keys: Keys, workers: Iterable[WorkerId], command: Command, timeout_s: float
) -> AsyncIterator[Reply]:
    """Commands all of them at once; of each its reply, or one that says why there is none. Raises: RedisError."""
    waiting, id_ = set(workers), secrets.token_hex(8)
    pipe = redis.pipeline(transaction=False)
    for worker in waiting:
        key = keys.commands(worker)
        pipe.rpush(key, encode(command(id_)))
        pipe.expire(key, COMMANDS_TTL_S)
    await pipe.execute()
    end = time.monotonic() + timeout_s
    while waiting and (remaining_s := end - time.monotonic()) > 0:
        # Short: the Redis client gives up on replies that take longer than its own time-out.
        entry = await cast(Any, redis.blpop([keys.reply(id_)], timeout=min(1.0, remaining_s)))
        if entry is not None:
            reply = decode_reply(entry[1])
            waiting.discard(reply.worker)
            yield reply
            continue
        alive = await redis.exists(*(keys.worker(worker) for worker in waiting))
        if alive < len(waiting):
            for worker in list(waiting):
                if not await redis.exists(keys.worker(worker)):
                    waiting.discard(worker)
                    yield Reply(worker, False, "it has gone")
    for worker in waiting:
        yield Reply(worker, False, f"no answer within {timeout_s:g} s")
