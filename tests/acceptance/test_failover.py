"""The Redis master dies under load; Sentinels make its replica the master, and nobody has to be restarted."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import openai
import pytest

from tests.sentinels import MASTER, PASSWORD, Watched, watched
from tests.stack import BIN, Stack, free_port, mock_pool, stack, wait_until

POOL = "decode-pool-a"


@pytest.fixture
def watch(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    with watched(tmp_path, tls=getattr(request, "param", "plain") == "tls") as w:
        yield w


@pytest.fixture
def served(watch: Watched, tmp_path: Path) -> Iterator[Stack]:
    with stack(watch.url, tmp_path, {POOL: mock_pool(step_ms=20.0)}) as s:
        s.api()
        s.worker()
        s.wait_ready()
        yield s


def client(s: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=30)


def answered(s: Stack) -> bool:
    body = {"model": "mock", "prompt": "hello", "max_tokens": 3}
    answer = httpx.post(f"{s.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code in (200, 503), answer.text
    if answer.status_code == 503:
        assert answer.headers["retry-after"]
        assert set(answer.json()) == {"error"}
    return answer.status_code == 200


@pytest.mark.parametrize("dies", [True, False])
def test_requests_are_answered_again_within_seconds_of_a_failover(watch: Watched, served: Stack, dies: bool) -> None:
    """By the same API and the same worker, whether the master died or became a replica on demand.

    Until then they are told to come again.
    """
    assert answered(served)
    old = watch.master
    if dies:
        watch.kill(old)
    else:
        watch.ask("SENTINEL", "FAILOVER", MASTER)
        wait_until(lambda: watch.master != old, "the failover", 20)
    wait_until(lambda: answered(served), "a request is answered", 20)
    assert watch.master != old
    assert all(answered(served) for _ in range(5))
    assert "Traceback" not in served.log("api")


def test_a_stream_in_progress_goes_on(watch: Watched, served: Stack) -> None:
    """The worker keeps what it could not send, and sends it to the new master."""
    with client(served) as c:
        asked = {"model": "mock", "prompt": "hello", "seed": 3, "max_tokens": 300, "extra_body": {"ignore_eos": True}}
        whole = c.completions.create(**asked).choices[0].text
        stream = iter(c.completions.create(**asked, stream=True))
        text = "".join(next(stream).choices[0].text for _ in range(20))
        watch.kill(watch.master)
        died = time.monotonic()
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == whole
        assert time.monotonic() - died < 20


@pytest.mark.parametrize("watch", ["plain", "tls"], indirect=True)
def test_flower_and_the_workers_control_commands_work_after_a_failover(watch: Watched, served: Stack) -> None:
    """And nowhere is the password of Redis shown."""
    port = free_port()
    flower = f"http://127.0.0.1:{port}"
    command = (str(BIN / "celery"), "-A", "app", "flower", f"--port={port}")
    served.spawn("flower", *command, FLOWER_UNAUTHENTICATED_API="1")
    wait_until(lambda: workers(flower), "Flower sees the worker")
    watch.kill(watch.master)
    wait_until(lambda: answered(served), "a request is answered", 20)
    (worker,) = wait_until(lambda: workers(flower), "Flower sees the worker again")
    pages = "".join(httpx.get(f"{flower}/{page}", timeout=20).text for page in ("broker", f"worker/{worker}"))
    assert POOL in pages
    assert MASTER in pages
    for text in (pages, served.log("flower"), served.log("worker"), served.log("api")):
        assert PASSWORD not in text
        assert quote(PASSWORD) not in text


def workers(flower: str) -> list[str]:
    """Those that answer Flower's questions."""
    try:
        found = httpx.get(f"{flower}/api/workers?refresh=1", timeout=10).json()
    except (httpx.TransportError, ValueError):
        return []
    return [name for name, told in found.items() if told.get("stats")]
