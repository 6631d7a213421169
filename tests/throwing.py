"""`python -m tests.throwing SCRIPT ARGUMENT…`: runs one of our processes, and throws each kind of error into its loops.

Into each loop that `app.running.loops` keeps, instead of its first turns, one kind after the other; the pauses
meanwhile are short. Afterwards the process is as it always is.
"""

import asyncio
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable

from redis.exceptions import ConnectionError as RedisConnectionError

from app.errors import StoreDown
from app.running import loops

KINDS: tuple[type[BaseException], ...] = (
    RuntimeError, OSError, RedisConnectionError, StoreDown, KeyError, TimeoutError, asyncio.CancelledError,
)  # fmt: skip
_thrown: Counter[str] = Counter()
_take, _rest, _take_in_thread = loops.take, loops.rest, loops.take_in_thread


def _throw(failing: str) -> None:
    number = _thrown[failing]
    _thrown[failing] += 1
    if number < len(KINDS):
        raise KINDS[number]("thrown") from ValueError("its cause")


async def take(failing: str, turn: loops.Turn) -> None:
    _throw(failing)
    await _take(failing, turn)


async def rest(failing: str, pause: loops.Pause) -> None:
    await (asyncio.sleep(0.01) if _thrown[failing] < len(KINDS) else _rest(failing, pause))


def take_in_thread(failing: str, turn: Callable[[], object]) -> None:
    time.sleep(0)
    if issubclass(KINDS[min(_thrown[failing], len(KINDS) - 1)], asyncio.CancelledError):  # threads know no such thing
        _thrown[failing] += 1
    _throw(failing)
    _take_in_thread(failing, turn)


if __name__ == "__main__":
    loops.take, loops.rest, loops.take_in_thread = take, rest, take_in_thread  # type: ignore[assignment]
    _, *sys.argv = sys.argv
    runpy.run_path(sys.argv[0], run_name="__main__")
