"""Executes the commands of API replicas, which bypass the worker's queue. On the engine's loop."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from typing import Any, cast

import msgspec
from redis.exceptions import RedisError

from app.engines.base import PrefixResetter
from app.errors import XylemError
from app.messages.commands import (
    Cancel,
    ClearCache,
    ExpandMedia,
    LoadAdapter,
    LookAtPrefixes,
    Reply,
    StateCommand,
    decode_worker_command,
)
from app.messages.wire import encode
from app.runner.runner import Runner
from app.running.loops import keep
from app.store import async_client
from app.telemetry import logger
from workers.engine.adapter_keeper import AdapterKeeper
from workers.engine.kv_event_feed import KvEventFeed
from workers.engine.media_questions import MediaQuestions
from workers.engine.prefix_keeper import PrefixKeeper
from workers.engine.state_keeper import StateKeeper

log = logger(__name__)
_REPLY_TTL_S = 60
_WAIT_S = 5  # for a command
_LATE_S = 3.0  # until Redis has said that there was none: then the connection is lost


async def run_commands(
    runner: Runner,
    feeds: Sequence[KvEventFeed],
    keeper: StateKeeper,
    adapters: AdapterKeeper | None = None,
    prefixes: PrefixKeeper | None = None,
) -> None:
    """Executes the commands in `commands:<worker>` until cancelled. A list, which loses nothing, unlike a channel."""
    redis = async_client(runner.settings.redis_url, runner.keys.home, socket_timeout=_WAIT_S + _LATE_S)
    key = runner.keys.commands(runner.worker)
    working: set[asyncio.Task[None]] = set()
    questions = MediaQuestions(runner)

    async def take() -> None:
        entry = cast(tuple[bytes, bytes] | None, await redis.blpop([key], timeout=_WAIT_S))
        if entry is None:
            return
        try:
            command = decode_worker_command(entry[1])
        except msgspec.DecodeError as exc:
            log.error("command_not_understood", error=str(exc))
            return
        if isinstance(command, Cancel):
            runner.cancel(command.run)
        elif isinstance(command, LoadAdapter):
            if adapters is not None:
                adapters.look(command.adapter)
        elif isinstance(command, LookAtPrefixes):
            if prefixes is not None:
                prefixes.look()
        else:
            if isinstance(command, ExpandMedia):
                work = _expand(runner, questions, command)
            elif isinstance(command, ClearCache):
                work = _resting(prefixes, _clear(runner, feeds, command.id))
            else:
                work = _resting(prefixes, _change(runner, keeper, command))
            task = asyncio.create_task(work)  # so that cancels needn't wait
            working.add(task)
            task.add_done_callback(working.discard)

    await keep("commands_not_read", take, 0)


async def _resting(prefixes: PrefixKeeper | None, work: Coroutine[Any, Any, None]) -> None:
    async with nullcontext() if prefixes is None else prefixes.resting():
        await work


async def clear_cache(runner: Runner, feeds: Sequence[KvEventFeed]) -> str:
    """Forgets all cached prefixes; returns the reason of a failure, or ''."""
    if not isinstance(runner.engine, PrefixResetter):
        return "this engine can't"
    clears = [feed.clears for feed in feeds]
    if not await runner.engine.reset_prefix_cache():
        return "requests are running"
    for feed, before in zip(feeds, clears, strict=True):
        await feed.forget(before)
    return ""


async def _clear(runner: Runner, feeds: Sequence[KvEventFeed], command: str) -> None:
    try:
        reason = await clear_cache(runner, feeds)
    except Exception as exc:
        log.exception("cache_not_cleared")
        reason = f"it failed ({type(exc).__name__})"
    await _reply(runner, command, reason)


async def _change(runner: Runner, keeper: StateKeeper, command: StateCommand) -> None:
    reason = ""
    try:
        await keeper.execute(command)
    except XylemError as exc:
        reason = exc.message
    except Exception as exc:
        log.exception("state_not_changed", command=type(command).__name__)
        reason = f"it failed ({type(exc).__name__})"
    await _reply(runner, command.id, reason)


async def _expand(runner: Runner, questions: MediaQuestions, question: ExpandMedia) -> None:
    await _send(runner, question.id, await questions.answered(question))


async def _reply(runner: Runner, command: str, reason: str) -> None:
    """`reason`: of a failure; empty if it is done."""
    await _send(runner, command, Reply(runner.worker, not reason, reason))


async def _send(runner: Runner, command: str, reply: Reply) -> None:
    key = runner.keys.reply(command)
    pipe = runner.redis.pipeline(transaction=False)
    pipe.rpush(key, encode(reply))
    pipe.expire(key, _REPLY_TTL_S)
    try:
        await pipe.execute()
    except (RedisError, OSError) as exc:  # the replica reports that there was no reply
        log.warning("command_not_answered", error=repr(exc))
