"""What a request costs that its key's limits refuse: no more than `app/endpoint_costs.py` says. There is no worker."""

import asyncio
import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from app.endpoint_costs import COSTS, Cost
from tests.kserve import asked as tensors
from tests.kserve import grpc_client
from tests.pictures import asked, png, url
from tests.speech.whisper_like import whisper_like
from tests.stack import Stack, connects, free_port, mock_pool, stack, wait_until
from tests.vlm import random_vlm

LOOPBACK = "127.0.0.1"
ADMIN = {"x-api-key": "sesame"}
MAX_BODY = 16 * 2**20
FORM = "multipart/form-data; boundary=x"


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("admission")
    pools = {
        "sees-pool": mock_pool(model="sees") | {"path": str(random_vlm("idefics3", weights=False))},
        "speech-pool": mock_pool(model="whisper")
        | {"task": "transcribe", "path": str(whisper_like(folder / "speech", multilingual=False))},
        "paint-pool": {"model": "painter", "engine": "mock", "task": "image"},
        "embed-pool": mock_pool(model="embedder") | {"task": "embed"},
    }
    env = {
        "XYLEM_DEPLOYMENT": "admission", "XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": "sesame",
        "XYLEM_GRPC_PORT": str(free_port()), "XYLEM_HEAD_S": "3", "XYLEM_BODY_S": "4",
        "XYLEM_INCOMING_BYTES": str(2**28),
    }  # fmt: skip
    with stack(valkey_url, folder, pools, **env) as s:
        s.api()
        wait_until(lambda: connects(s.port), "the API", timeout_s=60)
        yield s
        assert "Traceback" not in s.log("api")


@pytest.fixture
def used_up(served: Stack) -> dict[str, str]:
    """The header of a key that has had its one request a minute: a body of nothing, which is refused, and counts."""
    made = httpx.post(
        f"{served.url}/admin/keys", json={"name": f"k{time.time_ns()}", "requests_per_min": 1}, headers=ADMIN
    )
    key = {"x-api-key": made.json()["key"]}
    answer = httpx.post(
        f"{served.url}/tokenize", content=b" " * 2**17, headers=key | {"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    return key


def decoded_by(s: Stack) -> float:
    """How many pictures and sounds its API process has begun to read."""
    lines = httpx.get(f"{s.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("xylem_media_seconds_count"))


def temporary_files(s: Stack) -> int:
    """How many of its API process are open: they have no name."""
    found = 0
    for fd in Path(f"/proc/{s.names['api'].pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            found += fd.readlink().name.endswith("(deleted)")
    return found


def path_of(path: str) -> str:
    return path.replace("{name:path}", "sees").replace("{version}", "1")


HTTP = {path: cost for path, cost in COSTS.items() if cost.guard == "limits" and "grpc" not in path.lower()}
LONG = {path: cost for path, cost in HTTP.items() if cost.body.startswith("XYLEM_")}


def headers_of(path: str, cost: Cost) -> dict[str, str]:
    return {"content-type": FORM if cost.form else "application/json"}


@pytest.mark.parametrize("path", LONG)
def test_a_large_body_of_a_key_that_has_used_up_its_limit_is_not_read(
    served: Stack, used_up: dict[str, str], path: str
) -> None:
    """Neither one whose length is given, nor one that comes in pieces: in either case it isn't parsed."""
    cost, sent = LONG[path], 0
    started = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        yield started if cost.form else b'{"model": "'
        for _ in range(4096):
            sent += 2**14
            yield b"x" * 2**14

    api = psutil.Process(served.names["api"].pid)
    before = sum(api.cpu_times()[:2])
    with httpx.Client(base_url=served.url, headers=used_up | headers_of(path, cost), timeout=60) as client:
        for _ in range(5):
            answer = client.post(path_of(path), content=started + b"x" * (MAX_BODY - 1000))
            assert answer.status_code == 429, answer.text[:300]
            assert int(answer.headers["retry-after"]) > 0
        assert (sum(api.cpu_times()[:2]) - before) / 5 <= cost.cpu_ms / 1000 + 0.01  # the clock's step
        assert client.post(path_of(path), content=pieces()).status_code == 429


def test_a_large_message_of_grpc_is_refused_before_it_is_read(served: Stack, used_up: dict[str, str]) -> None:
    """Also within a stream, which goes on."""
    key = tuple(used_up.items())
    large = tensors("long " * 40_000, model="sees")

    async def ask() -> None:
        async with grpc_client(served) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.call("ModelInfer", large, metadata=key)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "requests a minute" in str(refused.value.details())
            stream = client.stream(metadata=key)
            for _ in range(2):
                await stream.write(large)
                assert "requests a minute" in (await stream.read()).error_message

    asyncio.run(ask())


PICTURE = png(3, 40, 30)
SHOWN: dict[str, Any] = {"model": "sees", "messages": asked(PICTURE)}
_BLOCK = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PICTURE).decode()}
ANTHROPIC = {"model": "sees", "messages": [{"role": "user", "content": [{"type": "image", "source": _BLOCK}]}]}
RESPONSE = {
    "model": "sees",
    "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url(PICTURE)}]}],
}
SPOKEN = {"model": "sees", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}


def form(**files: bytes) -> bytes:
    parts = [
        b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b'
        % (b"whisper" if "file" in files else b"painter")
    ]
    if "image" in files:
        parts.append(b'--x\r\ncontent-disposition: form-data; name="prompt"\r\n\r\na boat')
    parts += [
        b'--x\r\ncontent-disposition: form-data; name="%b"; filename="f"\r\n\r\n%b' % (name.encode(), data)
        for name, data in files.items()
    ]
    return b"\r\n".join(parts) + b"\r\n--x--\r\n"


DEAR: dict[str, tuple[str, Any]] = {
    "a picture": ("/v1/chat/completions", SHOWN),
    "a picture by URL": (
        "/v1/chat/completions",
        {"model": "sees", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://192.0.2.1/never-asked.png"}}]}]},
    ),
    "Anthropic's picture": ("/v1/messages", ANTHROPIC | {"max_tokens": 3}),
    "a response's picture": ("/v1/responses", RESPONSE),
    "a picture to count": ("/v1/messages/count_tokens", ANTHROPIC),
    "a response's picture to count": ("/v1/responses/input_tokens", RESPONSE),
    "a picture to tokenise": ("/tokenize", SHOWN),
    "a response that goes on": ("/v1/responses", {"model": "sees", "input": "a", "previous_response_id": "resp_1"}),
    "a regular expression": ("/v1/chat/completions", SPOKEN | {"guided_regex": "[a-z]{3}"}),
    "a grammar": ("/v1/completions", {"model": "sees", "prompt": "a", "guided_grammar": 'root ::= "a"'}),
    "texts to embed": ("/v1/embeddings", {"model": "embedder", "input": ["long " * 8000]}),
    "a picture to edit": ("/v1/images/edits", form(image=PICTURE)),
    "a sound": ("/v1/audio/transcriptions", form(file=b"RIFF" + bytes(1000))),
}  # fmt: skip


@pytest.mark.parametrize("what", DEAR)
def test_what_is_small_and_dear_is_refused_before_it_is_fetched_decoded_or_compiled(
    served: Stack, used_up: dict[str, str], what: str
) -> None:
    """As all limits do, with the time to wait; and nothing was decoded."""
    path, body = DEAR[what]
    decoded = decoded_by(served)
    raw, kind = (body, FORM) if isinstance(body, bytes) else (json.dumps(body).encode(), "application/json")
    answer = httpx.post(served.url + path, content=raw, headers=used_up | {"content-type": kind}, timeout=60)
    assert answer.status_code == 429, answer.text[:300]
    assert "requests a minute" in answer.text
    assert decoded_by(served) == decoded


def test_who_stands_still_amid_a_request_is_cut_off_and_leaves_nothing(served: Stack) -> None:
    """Half heads, half bodies, half uploads: told with 408; and a key has so many bytes on their way at once."""
    made = httpx.post(f"{served.url}/admin/keys", json={"name": "still"}, headers=ADMIN).json()["key"]
    own = f"x-api-key: {made}\r\nhost: {LOOPBACK}\r\n"
    upload = f"POST /v1/files HTTP/1.1\r\n{own}content-type: {FORM}\r\ncontent-length: 30000000\r\n\r\n--x\r\n"
    upload += 'content-disposition: form-data; name="file"; filename="f"\r\n\r\n'
    body = f"POST /tokenize HTTP/1.1\r\n{own}content-type: application/json\r\ncontent-length: 15000000\r\n\r\n"
    halves = [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a",
        body.encode() + b" " * 10**6,
        upload.encode() + b"x" * 4 * 10**6,
    ]
    temporary = temporary_files(served)
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_connection((LOOPBACK, served.port), 60)) for _ in range(4)]
        for one, half in zip(sockets, [*halves, b""], strict=True):
            one.sendall(half)
        with socket.create_connection((LOOPBACK, served.port), 60) as more:  # over a quarter of all
            more.sendall(upload.encode())
            assert b" 429 " in more.recv(4096).partition(b"\r\n")[0]
        wait_until(lambda: temporary_files(served) > temporary, "some of the upload is in a file")
        answers = [one.recv(4096) for one in sockets]
    assert [answer[9:12] for answer in answers] == [b"408", b"408", b"408", b""]
    assert all(b"request_timeout" in answer for answer in answers[:3])
    wait_until(lambda: temporary_files(served) == temporary, "no file is left")
    answer = httpx.post(
        f"{served.url}/v1/files", data={"purpose": "batch"}, files={"file": ("f", b"x" * 10**6)},
        headers={"x-api-key": made}, timeout=60,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def test_an_upload_over_the_quota_is_refused_by_its_length(served: Stack) -> None:
    """Before a byte of it is read."""
    limits = {"name": "small", "file_quota": 10**6}
    made = httpx.post(f"{served.url}/admin/keys", json=limits, headers=ADMIN).json()["key"]
    head = f"POST /v1/files HTTP/1.1\r\nx-api-key: {made}\r\nhost: {LOOPBACK}\r\ncontent-type: {FORM}\r\n"
    with socket.create_connection((LOOPBACK, served.port), 60) as one:
        one.sendall(f"{head}content-length: 5000000\r\n\r\n".encode())
        assert b"file_quota_exceeded" in one.recv(4096)
