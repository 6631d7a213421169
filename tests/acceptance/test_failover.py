"""The Redis master dies under load; Sentinels make its replica the master, and nobody has to be restarted."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

import httpx
import pytest
from redis.exceptions import ResponseError

from tests.sentinels import MASTER, PASSWORD, Watched, watched
from tests.serving import client_of
from tests.stack import Stack, mock_pool, stack, wait_until

POOL = "decode-pool-a"
WITHIN_S = 20  # a failover, also on a busy machine


@dataclass
class Story:
    """The observations of a failover."""

    watch: Watched
    served: Stack
    flower: str
    old: int  # the port of the master that was killed
    whole: str  # an undisturbed answer
    text: str  # and the one in whose middle the master was killed
    answered_s: float  # from the kill until a new request is answered
    took_s: float  # and to the end of that answer


@pytest.fixture(scope="module", params=["plain", "tls"])
def story(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A master is killed: once for all tests, since Sentinels wait before they do it again."""
    path = tmp_path_factory.mktemp("failover")
    with (
        watched(path, tls=request.param == "tls") as watch,
        stack(watch.url, path, {POOL: mock_pool(step_ms=20.0)}) as s,
    ):
        s.api()
        s.worker()
        s.wait_ready()
        flower, _ = s.flower(FLOWER_UNAUTHENTICATED_API="1")
        wait_until(lambda: workers(flower), "Flower sees the worker", 60)
        assert answered(s)
        old = watch.master
        with client_of(s.url) as c:
            fields = {"model": "mock", "prompt": "hello", "seed": 3, "max_tokens": 300}
            fields["extra_body"] = {"ignore_eos": True}
            whole = c.completions.create(**fields).choices[0].text
            stream = iter(c.completions.create(**fields, stream=True))
            text = "".join(next(stream).choices[0].text for _ in range(20))
            with ThreadPoolExecutor() as threads:
                watch.kill(old)
                kill_time = time.monotonic()
                rest = threads.submit(lambda: "".join(chunk.choices[0].text for chunk in stream))
                wait_until(lambda: answered(s), "a request is answered", 60)
                answered_s = time.monotonic() - kill_time
                text += rest.result()
        yield Story(watch, s, flower, old, whole, text, answered_s, time.monotonic() - kill_time)


def answered(s: Stack) -> bool:
    body = {"model": "mock", "prompt": "hello", "max_tokens": 3}
    answer = httpx.post(f"{s.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code in (200, 503), answer.text
    if answer.status_code == 503:
        assert answer.headers["retry-after"]
        assert set(answer.json()) == {"error"}
    return answer.status_code == 200


def workers(flower: str) -> list[str]:
    """The names of the workers that answer Flower's questions."""
    try:
        answers = httpx.get(f"{flower}/api/workers?refresh=1", timeout=10).json()
    except (httpx.TransportError, ValueError):
        return []
    return [name for name, info in answers.items() if info.get("stats")]


def test_a_stream_in_progress_goes_on(story: Story) -> None:
    """The worker keeps what it could not send, and sends it to the new master."""
    assert story.text == story.whole
    assert story.took_s < WITHIN_S


@pytest.mark.parametrize("dies", [True, False])
def test_requests_are_answered_again_within_seconds_of_a_failover(story: Story, dies: bool) -> None:
    """The same API and the same worker answer, whether the master died or became a replica on demand.

    Until then, clients are told to come again.
    """
    s, watch, old = story.served, story.watch, story.old
    assert story.answered_s < WITHIN_S
    if not dies:
        old = watch.master
        watch.server("--replicaof", "127.0.0.1", str(old))
        wait_until(watch.settled, "the Sentinels know the new replica", 60)
        wait_until(lambda: begun(watch), "the failover has begun", 60, 0.5)
        wait_until(lambda: watch.master != old, "the failover", 60)
    wait_until(lambda: answered(s), "a request is answered", WITHIN_S)
    assert watch.master != old
    assert all(answered(s) for _ in range(5))
    assert "Traceback" not in s.log("api")


def begun(watch: Watched) -> bool:
    """Whether the Sentinels take the order: not before they are done with another one, and know the replica."""
    try:
        return watch.ask("SENTINEL", "FAILOVER", MASTER) is not None
    except ResponseError:
        return False


def test_flower_and_the_workers_control_commands_work_after_a_failover(story: Story) -> None:
    """The password of Redis is shown nowhere."""
    s, flower = story.served, story.flower
    (worker,) = wait_until(lambda: workers(flower), "Flower sees the worker again", 60)

    def read(page: str) -> str:
        return httpx.get(f"{flower}/{page}", timeout=20).text

    # A busy worker may answer Flower's first question late.
    pages = read("broker") + wait_until(
        lambda: (page := read(f"worker/{worker}")) and POOL in page and page, "Flower knows the worker's queues", 60
    )
    assert MASTER in pages
    for text in (pages, s.log("flower"), s.log("worker"), s.log("api")):
        assert PASSWORD not in text
        assert quote(PASSWORD) not in text
