"""The time for which an engine keeps a request that an operator has revoked, among others that run on."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
from celery import Celery

from app.keys import Keys
from ops.bench.disagg.play import percentile
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import xylem

_SEATS, _PAUSE_S, _LATEST_S = 32, 0.02, 30.0
_POOL = {"model": "bench", "engine": "mock", "max_running": _SEATS, "args": {"step_ms": 10.0}}
_BODY = {"model": "bench", "prompt": "word", "max_tokens": 3000, "ignore_eos": True, "stream": True}
_KEYS = Keys("xylem")


def revoke(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Measures from `revoke` until the run's generator and its blocks are gone, ms. Raises: Unavailable."""
    count = size.of(400, 100, 4)
    with xylem(directory, _POOL, 1) as system, _ended(_app(system)) as ends, _requests(system, count) as ids:
        began: dict[str, float] = {}
        app = _app(system)
        app.control.revoke("none")  # connects
        for number in range(count):
            say(f"revoke: {number} of {count}")
            began[task := next(ids)] = time.time()
            app.control.revoke(task, terminate=number % 2 == 1)
            time.sleep(_PAUSE_S)
        end = time.monotonic() + _LATEST_S
        while began.keys() - ends.keys() and time.monotonic() < end:
            time.sleep(0.05)
    if lasting := began.keys() - ends.keys():
        raise Unavailable(f"{len(lasting)} of {count} revoked requests did not end")
    times = [(ends[task] - at) * 1e3 for task, at in began.items()]
    return {"revoke_ms_p99": percentile(times, 99), "revoke_ms_p99_values": times}


def _app(system: System) -> Celery:
    """An ordinary Celery client of the system's."""
    app = Celery("operator", broker=system.redis_url)
    app.conf.broker_transport_options = {"global_keyprefix": _KEYS.prefix}
    return app


@contextmanager
def _ended(app: Celery) -> Iterator[dict[str, float]]:
    """Gives when the revoked tasks have ended, by the worker's clock, which is ours: events come later and say it."""
    ends: dict[str, float] = {}
    listening = Event()
    receivers: list[Any] = []

    def note(event: dict[str, Any]) -> None:
        listening.set()  # there is a heartbeat every other second
        if event["type"] == "task-revoked":
            ends[event["uuid"]] = event["timestamp"]

    def capture() -> None:
        with app.connection_for_read() as connection:
            receivers.append(app.events.Receiver(connection, handlers={"*": note}))
            with suppress(TimeoutError):  # at a heartbeat it sees that it shall stop
                receivers[0].capture(limit=None, timeout=_LATEST_S, wakeup=True)

    thread = Thread(target=capture)
    thread.start()
    try:
        if not listening.wait(_LATEST_S):
            raise Unavailable("no event came")
        yield ends
    finally:
        receivers[0].should_stop = True
        thread.join()


@contextmanager
def _requests(system: System, count: int) -> Iterator[Iterator[str]]:
    """The ids of so many requests that run until they are revoked, as many at once as there are seats."""
    ids: list[str] = []

    def stream(_: int) -> None:
        with httpx.stream("POST", f"{system.url}/v1/completions", json=_BODY, timeout=60) as answer:
            events = answer.iter_lines()
            ids.append(json.loads(next(events).removeprefix("data: "))["id"])
            for _event in events:
                pass

    def running() -> Iterator[str]:
        for number in range(count):
            end = time.monotonic() + _LATEST_S
            while len(ids) <= number and time.monotonic() < end:
                time.sleep(0.005)
            if len(ids) <= number:
                raise Unavailable(f"{number} of {count} requests began")
            yield ids[number]

    with ThreadPoolExecutor(min(count, _SEATS)) as threads:
        streams = [threads.submit(stream, number) for number in range(count)]
        yield running()
        for each in streams:
            each.result()
