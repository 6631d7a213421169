"""Redis has no memory left: clients are told, nothing is lost, and nobody has to be restarted afterwards."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.serving import begin, client_of
from tests.stack import Stack, all_free, free_port, mock_pool, stack, valkey, wait_until

POOL = "decode-pool-a"
HELLO = {"model": "mock", "prompt": "hello", "max_tokens": 3}


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    path = tmp_path_factory.mktemp("memory")
    directory = path / "valkey"
    directory.mkdir()
    env = {"XYLEM_WORKER_PORT": str(free_port())}
    with valkey(directory) as url, stack(url, path, {POOL: mock_pool(step_ms=20.0)}, **env) as s:
        begin(s, {"worker": POOL})
        yield s
        assert "Traceback" not in s.log("api")


@pytest.fixture
def served(stacked: Stack) -> Iterator[Stack]:
    """A stack with memory before each test, and after it."""
    yield stacked
    free(stacked)
    stacked.wait_ready()


def test_a_worker_whose_connection_breaks_meanwhile_comes_back(served: Stack) -> None:
    """Celery's consumer writes when it connects, and is refused."""
    full(served)

    def refused() -> bool:
        # Again and again: a connection that breaks between two reads is opened anew without a write.
        served.redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
        return "Cannot connect" in served.log("worker")

    wait_until(refused, "the worker is refused", every_s=0.5)
    free(served)
    answer = httpx.post(f"{served.url}/v1/completions", json=HELLO, timeout=60)
    assert answer.status_code == 200, answer.text


def full(s: Stack) -> None:
    s.redis.config_set("maxmemory", 1)


def running(s: Stack) -> bool:
    """Whether the engine runs anything, as the worker's own port tells: in Redis it can't."""
    metrics = httpx.get(f"http://127.0.0.1:{s.env['XYLEM_WORKER_PORT']}/metrics").text
    (sample,) = (line for line in metrics.splitlines() if line.startswith("xylem_worker_running{"))
    return not sample.endswith(" 0.0")


def free(s: Stack) -> None:
    s.redis.config_set("maxmemory", 0)


IN_BACKGROUND = {"model": "mock", "input": "hello", "max_output_tokens": 16, "background": True}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("completions", HELLO),
        ("completions", HELLO | {"stream": True}),
        ("chat/completions", {"model": "mock", "messages": [{"role": "user", "content": "hi"}], "store": True}),
        ("responses", IN_BACKGROUND),
    ],
    ids=["whole", "stream", "kept", "background"],
)
def test_a_request_is_refused_and_told_why_and_when_to_come_again(
    served: Stack, path: str, asked: dict[str, Any]
) -> None:
    """The refusal has OpenAI's shape; and once there is memory, the request is answered."""
    full(served)
    answer = httpx.post(f"{served.url}/v1/{path}", json=asked, timeout=20)
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("store_unavailable", "server_error")
    assert "out of memory" in error["message"]
    assert int(answer.headers["retry-after"]) >= 1
    change = httpx.patch(f"{served.url}/admin/pools/{POOL}/limits", json={"max_queued": 5}, timeout=20)
    assert (change.status_code, change.json()["error"]["code"]) == (503, "store_unavailable")
    assert "out of memory" in change.json()["error"]["message"]
    free(served)
    answer = httpx.post(f"{served.url}/v1/{path}", json=asked, timeout=20)
    assert answer.status_code == 200, answer.text


def test_a_stream_in_progress_goes_on_when_there_is_memory_again(served: Stack) -> None:
    """The worker keeps what Redis does not take."""
    fields = {"model": "mock", "prompt": "hello", "seed": 3, "max_tokens": 300, "extra_body": {"ignore_eos": True}}
    with client_of(served.url) as client:
        whole = client.completions.create(**fields).choices[0].text
        stream = iter(client.completions.create(**fields, stream=True))
        text = "".join(next(stream).choices[0].text for _ in range(20))
        full(served)
        wait_until(lambda: not running(served), "the engine has computed all of it")
        free(served)
        text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == whole
    wait_until(lambda: all_free(served, POOL), "nothing of it is left")
    assert httpx.post(f"{served.url}/v1/completions", json=HELLO, timeout=20).status_code == 200
