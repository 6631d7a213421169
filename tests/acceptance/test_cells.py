"""Two cells, each a deployment with a Redis and a worker of its own, and an API replica of the first one."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import httpx
import pytest

from tests.redis_server import RedisServer, another_redis
from tests.serving import client_of
from tests.stack import Stack, all_free, mock_pool, stack, wait_until

POOL, AT_ONCE, TOKENS = "decode-pool-a", 4, 300


class TwoCells:
    """Each cell's worker takes `AT_ONCE` requests; prompts are `range`s' numbers, and seeds, too."""

    def __init__(self, home: Stack, other: Stack, servers: tuple[RedisServer, RedisServer]) -> None:
        self.home, self.other = home, other
        self.home_redis, self.other_redis = servers
        self.client = client_of(home.url)
        self.threads = ThreadPoolExecutor(4 * AT_ONCE)
        self.streamed = Semaphore(0)

    @property
    def _name(self) -> str:
        return f"{self.other.redis_url}#{self.other.deployment}"

    def cells(self) -> tuple[Any, Any]:
        """The entries of /health about home and the other cell."""
        entries = (self.home.ready() or {})["cells"]
        return entries["home"], entries[self._name]

    def total(self, metric: str) -> float:
        lines = httpx.get(f"{self.home.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"xylem_{metric}_total"))

    def sent(self) -> float:
        """Prompts sent to the other cell, ever."""
        return self.total("cell_sent")

    def answer(self, number: int) -> str:
        fields = {"model": "mock", "prompt": f"hello {number}", "seed": number, "max_tokens": TOKENS}
        text = ""
        for chunk in self.client.completions.create(**fields, stream=True, extra_body={"ignore_eos": True}):
            text += chunk.choices[0].text
            self.streamed.release()
        return text

    def alone(self, count: int) -> list[str]:
        """The answers of a cell with room."""
        numbers = range(count)
        return [text for i in numbers[::AT_ONCE] for text in self.threads.map(self.answer, numbers[i : i + AT_ONCE])]

    def begin(self, numbers: range) -> list["Future[str]"]:
        """All of them have begun to stream."""
        while self.streamed.acquire(blocking=False):
            pass
        streams = [self.threads.submit(self.answer, number) for number in numbers]
        for _ in range(10 * len(numbers)):
            assert self.streamed.acquire(timeout=60)
        return streams

    def fill(self, count: int) -> list["Future[str]"]:
        """`count` streams, of which those that find no room at home are in the other cell."""
        streams = self.begin(range(count))
        wait_until(lambda: [cell["requests"] for cell in self.cells()] == [AT_ONCE, count - AT_ONCE], "both have some")
        return streams


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoCells]:
    for name in "ab":
        (tmp_path / name).mkdir()
    with another_redis(tmp_path / "a") as here, another_redis(tmp_path / "b") as there:
        pools = {POOL: mock_pool(step_ms=10.0, max_running=AT_ONCE) | {"busy": {"max_queued": 0}}}
        env = {"XYLEM_CELLS": f"{here.url}#here,{there.url}#there", "XYLEM_CELL_LOST_S": "1"}
        with (
            stack(here.url, tmp_path / "a", pools, XYLEM_DEPLOYMENT="here", **env) as a,
            stack(there.url, tmp_path / "b", pools, XYLEM_DEPLOYMENT="there", **env) as b,
        ):
            a.api()
            a.worker()
            b.worker()
            a.wait_ready()
            two = TwoCells(a, b, (here, there))
            wait_until(lambda: all(cell["reachable"] for cell in two.cells()), "both cells are reachable")
            yield two


def test_requests_stay_at_home_while_it_has_room(two: TwoCells) -> None:
    """Requests one after the other stay too: none goes to the other cell."""
    two.alone(2 * AT_ONCE)
    assert two.sent() == 0


def test_requests_without_room_at_home_are_answered_by_the_other_cell(two: TwoCells) -> None:
    """The tokens are the same.

    Requests that find room in neither cell are held until there is some in either.
    """
    whole = two.alone(3 * AT_ONCE)
    streams = two.fill(2 * AT_ONCE)
    more = [two.threads.submit(two.answer, number) for number in range(2 * AT_ONCE, 3 * AT_ONCE)]
    assert [stream.result() for stream in streams + more] == whole
    assert two.sent() >= AT_ONCE
    assert two.total("migrations") == 0
    wait_until(lambda: all_free(two.home, POOL) and all_free(two.other, POOL), "nothing is left in either cell")


def test_requests_go_on_in_the_other_cell_when_all_workers_at_home_die(two: TwoCells) -> None:
    """Each goes on at the token where it was."""
    whole = two.alone(AT_ONCE)
    streams = two.begin(range(AT_ONCE))
    two.home.names["worker"].kill()
    assert [stream.result() for stream in streams] == whole
    assert two.sent() == AT_ONCE
    assert two.home.ready()["ready"]  # type: ignore[index]


@pytest.mark.parametrize("lost", ["home", "other"])
def test_requests_of_a_cell_without_redis_go_on_in_another_one(two: TwoCells, lost: str) -> None:
    """Each goes on at the token where it was, once the cell counts as lost; those of the other cell notice nothing."""
    whole = two.alone(2 * AT_ONCE)
    streams = two.fill(2 * AT_ONCE)
    victim = two.home_redis if lost == "home" else two.other_redis
    victim.kill()
    assert [stream.result() for stream in streams] == whole
    reachable = [cell["reachable"] for cell in two.cells()]
    assert reachable == [lost != "home", lost != "other"]
    assert "cell_lost" in two.home.log("api")
    if lost == "home":  # new requests go to the other cell, too
        assert two.answer(0) == whole[0]
    victim.start()
    wait_until(lambda: all(cell["reachable"] for cell in two.cells()), "the replica finds it again")
    assert [two.answer(number) for number in range(2)] == whole[:2]


def test_a_stream_in_another_cell_that_its_client_leaves_is_stopped_there(two: TwoCells) -> None:
    """Its place is free long before the answer would have ended."""
    fields: dict[str, Any] = {"model": "mock", "prompt": "long", "max_tokens": 8000}
    streams = [two.client.completions.create(**fields, stream=True) for _ in range(AT_ONCE + 1)]
    assert all(next(iter(stream)).choices for stream in streams)
    wait_until(lambda: [cell["requests"] for cell in two.cells()] == [AT_ONCE, 1], "one is in the other cell")
    streams.pop().close()
    wait_until(lambda: all_free(two.other, POOL), "the other cell has nothing to do")
    wait_until(lambda: [cell["requests"] for cell in two.cells()] == [AT_ONCE, 0], "the others go on at home")
    for stream in streams:
        stream.close()
