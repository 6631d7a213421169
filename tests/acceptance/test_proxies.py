"""Behind nginx, HAProxy and Envoy, as the guide configures them: streams, base path, clients, idle connections."""

import re
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from tests.acceptance.test_bad_input import CHAT, MESSAGES, refusal
from tests.proxies import NAMES, proxy
from tests.serving import served_by
from tests.stack import Stack, mock_pool, wait_until

POOL, ROOT_PATH = "decode-pool-a", "/llm"
ASK: dict[str, Any] = {"model": "mock", "messages": MESSAGES, "max_tokens": 4}


served = served_by(
    {POOL: mock_pool()}, XYLEM_ROOT_PATH=ROOT_PATH, XYLEM_TRUSTED_PROXIES="127.0.0.0/8", XYLEM_HOST="::",
    XYLEM_ALLOWED_HOSTS="api.example", XYLEM_SSE_PING_S="0.2",
)  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def front(request: pytest.FixtureRequest, served: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy, with the base path."""
    with proxy(request.param, tmp_path_factory.mktemp(request.param), served.port) as url:
        yield url + ROOT_PATH


def test_tokens_come_through_while_the_answer_is_made(served: Stack, front: str) -> None:
    """Each proxy passes a stream on as it comes: the answer is not done when its first token is here."""
    body = {**ASK, "stream": True, "max_tokens": 400, "ignore_eos": True}
    with httpx.Client(timeout=60) as http, http.stream("POST", f"{front}{CHAT}", json=body) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        id_ = re.search(r'"id":"([^"]+)"', first)
        assert id_
        assert http.get(f"{front}/requests/{id_[1]}").json()["prompts"][0]["state"] == "answering"
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_client_that_leaves_is_seen_through_a_proxy(served: Stack, front: str) -> None:
    """The engine would go on for nobody if it were not seen."""
    body = {**ASK, "stream": True, "max_tokens": 4000, "ignore_eos": True}
    with httpx.Client(timeout=60) as http:
        with http.stream("POST", f"{front}{CHAT}", json=body) as answer:
            first = next(line for line in answer.iter_lines() if line.startswith("data: "))
        id_ = re.search(r'"id":"([^"]+)"', first)
        assert id_

        def outcome() -> Any:
            return http.get(f"{front}/requests/{id_[1]}").json()["prompts"][0].get("outcome")

        assert wait_until(outcome, "the request has ended") == "cancelled"


def test_pages_below_a_base_path_find_all_that_they_need(served: Stack, front: str) -> None:
    with httpx.Client(base_url=front, timeout=20) as http:
        for page in ("/docs", "/redoc", "/console", "/console/fleet"):
            html = http.get(page).text
            paths = re.findall(r'(?:href|src|url)[=:] ?["\']([^"\'#]+)["\']', html)
            assert len(paths) > 2
            for path in paths:
                assert path.startswith(f"{ROOT_PATH}/")
                assert httpx.get(front.removesuffix(ROOT_PATH) + path).is_success, path
        document = http.get("/openapi.json", timeout=60).json()
        assert document["servers"] == [{"url": ROOT_PATH}]


def test_the_page_of_the_address_that_clients_see_is_not_foreign(served: Stack, front: str) -> None:
    """The console's own requests come with the origin that the browser knows, whatever a proxy makes of the host."""
    mine = {"host": "api.example", "origin": "https://api.example"}
    assert httpx.post(f"{front}{CHAT}", json=ASK, headers=mine, timeout=20).is_success
    other = {"host": "api.example", "origin": "https://evil.example"}
    assert refusal(httpx.post(f"{front}{CHAT}", json=ASK, headers=other), 403)["code"] == "origin_not_allowed"


@pytest.mark.parametrize("front", ["envoy"], indirect=True)
def test_clients_may_speak_http_2_to_the_proxy(served: Stack, front: str) -> None:
    command = ["curl", "-sS", "--http2-prior-knowledge", "-w", "%{http_version}", f"{front}{CHAT}", "--json"]
    body = '{"model": "mock", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": true}'
    output = subprocess.run([*command, body], capture_output=True, text=True, check=True).stdout
    assert output.rstrip().endswith("data: [DONE]\n\n2")


def test_the_api_listens_for_both_families_at_once(served: Stack) -> None:
    for address in ("127.0.0.1", "[::1]"):
        assert httpx.get(f"http://{address}:{served.port}/live").is_success


def test_an_idle_connection_outlasts_a_proxys(served: Stack) -> None:
    """uvicorn closes after 5 s: a proxy that keeps its own for longer would send into a connection that is gone."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.connect()
    connection.auto_open = 0  # it does not connect again
    for pause in (5.5, 0):
        connection.request("GET", "/live")
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
        time.sleep(pause)
    connection.close()
