"""Measures that a request which its key's limits refuse costs no more than `app/endpoints.py` says.

There is no worker.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from itertools import repeat
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from app.api.kserve.protocol import SERVICE
from app.endpoints import COSTS, LARGE
from tests.kserve import asked as tensors
from tests.kserve import grpc_client
from tests.serving import served_by
from tests.stack import Stack, free_port, wait_until
from tests.worst_requests import ADMIN, DEAR, FORM, bound_of, dear, path_of, pools, used_up, worst

LOOPBACK = "127.0.0.1"


served = served_by(
    pools, {}, XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="sesame", XYLEM_GRPC_PORT=str(free_port()),
    XYLEM_HEAD_S="3", XYLEM_BODY_S="4", XYLEM_INCOMING_BYTES=str(2**28),
)  # fmt: skip


@pytest.fixture
def client(served: Stack) -> Iterator[httpx.Client]:
    """One whose key has used up its limit."""
    with httpx.Client(base_url=served.url, timeout=60) as http_client:
        http_client.headers.update(used_up(http_client))
        yield http_client


def decoded_by(s: Stack) -> float:
    """Number of pictures and sounds that the API process has begun to read."""
    lines = httpx.get(f"{s.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("xylem_media_seconds_count"))


def temporary_files(s: Stack) -> int:
    """Number of temporary files that the API process has open: they have no name."""
    count = 0
    for fd in Path(f"/proc/{s.names['api'].pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            count += fd.readlink().name.endswith("(deleted)")
    return count


def answered(connection: socket.socket) -> tuple[int, bytes]:
    """The status and body of a whole answer, which may come in pieces."""
    answer = HTTPResponse(connection)
    answer.begin()
    return answer.status, answer.read()


HTTP = [row for row, cost in COSTS.items() if cost.guard == "limits" and SERVICE not in row]


@pytest.mark.parametrize("row", HTTP)
def test_the_worst_bodies_of_a_key_that_has_used_up_its_limit_are_refused(
    served: Stack, client: httpx.Client, row: str
) -> None:
    """Nothing of a large body is parsed; whatever it is, it costs no more CPU time than the table says."""
    api, count = psutil.Process(served.names["api"].pid), 0
    before = sum(api.cpu_times()[:2])
    for request in worst(row):
        answer = client.request(request.method, request.path, content=request.content, headers=request.headers)
        count += 1
        assert 400 <= answer.status_code < 500, answer.text[:300]
        if LARGE < len(request.content) < bound_of(row):
            assert answer.status_code == 429, answer.text[:300]
            assert int(answer.headers["retry-after"]) > 0
    assert (sum(api.cpu_times()[:2]) - before) / count <= COSTS[row].cpu_ms / 1000 + 0.01  # the clock's step


@pytest.mark.parametrize("row", [row for row in HTTP if bound_of(row) > LARGE])
def test_a_body_in_pieces_of_a_key_that_has_used_up_its_limit_is_not_read(client: httpx.Client, row: str) -> None:
    """No length is given, so no more of it is parsed than of one whose length is."""
    first_bytes = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'

    def pieces() -> Iterator[bytes]:
        yield first_bytes if COSTS[row].form else b'{"model": "'
        yield from repeat(b"x" * 2**14, 4096)

    kind = {"content-type": FORM if COSTS[row].form else "application/json"}
    assert client.post(path_of(row), content=pieces(), headers=kind).status_code == 429


def test_a_large_message_of_grpc_is_refused_before_it_is_read(served: Stack, client: httpx.Client) -> None:
    """A message within a stream is refused too, and the stream goes on."""
    key = [("x-api-key", client.headers["x-api-key"])]
    large = tensors("long " * 40_000, model="sees")

    async def ask() -> None:
        async with grpc_client(served) as client:
            with pytest.raises(grpc.aio.AioRpcError) as exc_info:
                await client.call("ModelInfer", large, metadata=key)
            assert exc_info.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "requests a minute" in str(exc_info.value.details())
            stream = client.stream(metadata=key)
            for _ in range(2):
                await stream.write(large)
                assert "requests a minute" in (await stream.read()).error_message

    asyncio.run(ask())


@pytest.mark.parametrize("what", DEAR)
def test_what_is_small_and_dear_is_refused_before_it_is_fetched_decoded_or_compiled(
    served: Stack, client: httpx.Client, what: str
) -> None:
    """The refusal is that of a limit like others, with the time to wait; and nothing was decoded."""
    request, decoded_count = dear(what), decoded_by(served)
    answer = client.post(request.path, content=request.content, headers=request.headers)
    assert answer.status_code == 429, answer.text[:300]
    assert "requests a minute" in answer.text
    assert decoded_by(served) == decoded_count


def test_who_stands_still_amid_a_request_is_cut_off_and_leaves_nothing(served: Stack) -> None:
    """Half heads, half bodies, half uploads: told with 408; and a key has so many bytes on their way at once."""
    key = httpx.post(f"{served.url}/admin/keys", json={"name": "still"}, headers=ADMIN).json()["key"]
    own = f"x-api-key: {key}\r\nhost: {LOOPBACK}\r\n"
    upload = f"POST /v1/files HTTP/1.1\r\n{own}content-type: {FORM}\r\ncontent-length: 30000000\r\n\r\n--x\r\n"
    upload += 'content-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    body = f"POST /tokenize HTTP/1.1\r\n{own}content-type: application/json\r\ncontent-length: 15000000\r\n\r\n"
    halves = [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a",
        body.encode() + b" " * 10**6,
        upload.encode() + b"x" * 4 * 10**6,
    ]
    temporary = temporary_files(served)
    with ExitStack() as exits:
        sockets = [exits.enter_context(socket.create_connection((LOOPBACK, served.port), 60)) for _ in range(4)]
        for one, half in zip(sockets, [*halves, b""], strict=True):
            one.sendall(half)
        with socket.create_connection((LOOPBACK, served.port), 60) as more:  # over a quarter of all
            more.sendall(upload.encode())
            assert answered(more)[0] == 429
        wait_until(lambda: temporary_files(served) > temporary, "some of the upload is in a file")
        answers = [answered(one) for one in sockets[:3]]
        assert sockets[3].recv(1) == b""
    assert all(status == 408 and b"request_timeout" in body for status, body in answers)
    wait_until(lambda: temporary_files(served) == temporary, "no file is left")
    answer = httpx.post(
        f"{served.url}/v1/files", data={"purpose": "batch"}, files={"file": ("f", b"x" * 10**6)},
        headers={"x-api-key": key}, timeout=60,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def test_an_upload_over_the_quota_is_refused_by_its_length(served: Stack) -> None:
    """The refusal comes before a byte of it is read."""
    limits = {"name": "small", "file_quota": 10**6}
    key = httpx.post(f"{served.url}/admin/keys", json=limits, headers=ADMIN).json()["key"]
    head = f"POST /v1/files HTTP/1.1\r\nx-api-key: {key}\r\nhost: {LOOPBACK}\r\ncontent-type: {FORM}\r\n"
    with socket.create_connection((LOOPBACK, served.port), 60) as one:
        one.sendall(f"{head}content-length: 5000000\r\n\r\n".encode())
        status, body = answered(one)
    assert (status, b"file_quota_exceeded" in body) == (403, True)
