"""Tests requests that end each process that begins to handle them: each costs some processes, and then only itself."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.batching import ended, line, results, submitted
from tests.chaos.fleet import TEMPLATE
from tests.poison import READER, RENDERER, mortal
from tests.serving import begin
from tests.stack import BIN, Stack, free_port, mock_pool, stack, stop, wait_until

POOL = "decode-pool-a"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def deadly(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("poison-batches")
    env = {"XYLEM_DEPLOYMENT": "poison-batches", "XYLEM_MAX_MIGRATIONS": "0", "XYLEM_API_TTL_S": "1"}
    with stack(
        valkey_url, directory, {POOL: mock_pool(answer_tokens=2000) | {"chat_template": str(TEMPLATE)}}, **env
    ) as s:
        begin(s, {"worker": POOL})
        yield s


@contextmanager
def batch_workers(s: Stack, count: int) -> Iterator[list[str]]:
    """Dead ones are started anew, each under a new name; yields the names."""
    names: list[str] = []
    over = threading.Event()

    def keep() -> None:
        while True:
            while sum(s.names[name].poll() is None for name in names) < count:
                names.append(f"batch-{len(names)}")
                command = str(BIN / "celery"), "-A", "app", "worker", "-Q", "batch"
                s.spawn(names[-1], *command, **mortal(s.directory))
            if over.wait(0.2):
                return

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield names
    finally:
        over.set()
        thread.join()


def asked(texts: list[str]) -> list[Any]:
    messages = [[{"role": "user", "content": text}] for text in texts]
    return [line(str(i), model="mock", messages=each, max_tokens=3) for i, each in enumerate(messages)]


@pytest.mark.timeout(300)
def test_a_line_that_kills_batch_workers_fails_and_all_others_are_answered(deadly: Stack) -> None:
    """One kills whoever reads the file, one whoever begins it; neither batch ever ended, nor any other one."""
    texts = [f"story {i}" for i in range(70)]
    with OpenAI(base_url=f"{deadly.url}/v1", api_key="none", timeout=60) as client, batch_workers(deadly, 2) as names:
        bad_batch = submitted(client, asked([*texts[:5], READER, *texts[6:40], RENDERER, *texts[41:]]))
        other = submitted(client, asked(texts))
        assert ended(client, other, 200).request_counts.completed == len(texts)
        end_state = ended(client, bad_batch, 200)
        assert end_state.status == "completed"
        output, errors = results(client, end_state)
        assert sorted(int(line["custom_id"]) for line in output) == [i for i in range(70) if i not in (5, 40)]
        assert {error["error"]["line"]: error["error"]["code"] for error in errors} == {
            6: "worker_lost",
            41: "worker_lost",
        }
        assert len(names) - 2 == 3 + 3  # twice with all, once with that line alone

    def counted() -> set[str]:
        """The kinds of work of which Redis has counts."""
        return {key.decode().split(":")[2] for key in deadly.redis.keys(f"{deadly.deployment}:handling:*")}

    wait_until(lambda: counted() == {"line"}, "the batches are cleaned up: but for lines', which stay for a day", 60)


@pytest.mark.timeout(200)
def test_an_answer_that_kills_the_replicas_that_adopt_it_fails_and_the_others_go_on(deadly: Stack) -> None:
    """The answer went from replica to replica, and ended each, with all other clients' streams."""
    first = free_port()
    owner = deadly.api("owner", first)
    wait_until(lambda: deadly.ready(f"http://127.0.0.1:{first}"), "the owner listens")
    stop(deadly.names["api"])  # the others are of the kind that dies
    ports = [free_port() for _ in range(3)]
    for port in ports:
        env = {"XYLEM_PORT": str(port), "XYLEM_MAX_MIGRATIONS": "1"} | mortal(deadly.directory)
        deadly.spawn(f"api-{port}", str(BIN / "xylem"), "api", **env)
        wait_until(lambda port=port: deadly.ready(f"http://127.0.0.1:{port}"), "it listens")  # type: ignore[misc]

    def ask(text: str) -> str:
        body = {"model": "mock", "input": text, "background": True, "max_output_tokens": 2000}
        return str(httpx.post(f"http://127.0.0.1:{first}/v1/responses", json=body, timeout=30).json()["id"])

    poison, others = ask(RENDERER), [ask(f"story {i}") for i in range(3)]
    stop(owner, signal.SIGKILL)
    names = [f"api-{port}" for port in ports]
    wait_until(lambda: sum(deadly.names[name].poll() is None for name in names) == 1, "two have ended", 60)
    (last,) = [name for name in names if deadly.names[name].poll() is None]
    wait_until(lambda: "answer_given_up" in deadly.log(last), "it is given up", 60)
    deadly.api()  # of the other kind: who reads the answer renders its prompt
    wait_until(deadly.ready, "it listens")

    def found(response: str) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{deadly.url}/v1/responses/{response}", timeout=30).json()
        return answer

    assert found(poison)["status"] == "failed"
    assert "API replicas died" in found(poison)["error"]["message"]
    for other in others:
        wait_until(lambda other=other: found(other)["status"] == "incomplete", "it is whole", 60)  # type: ignore[misc]
        assert found(other)["usage"]["output_tokens"] == 2000
    assert deadly.names[last].poll() is None
