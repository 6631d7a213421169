"""Tests access rights: API keys and their limits, the admin's key, Flower, and requests that are made to hurt."""

import json
import os
import pickle
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from kombu import Connection

from tests.acceptance.test_bad_input import CHAT, JSON, TEXT, refusal
from tests.serving import client_of, replica_of, serving
from tests.stack import Stack, leases, mock_pool, wait_until

POOL = "decode-pool-a"
ASK: dict[str, Any] = {"model": "mock", "prompt": "hello", "max_tokens": 4, "extra_body": {"ignore_eos": True}}
WITHIN_S = 20.0  # a second or two, and a busy machine


@pytest.fixture(scope="module")
def locked(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An API that asks for keys, and a worker."""
    env = {"XYLEM_DEPLOYMENT": "locked", "XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": "sesame"}
    with serving(valkey_url, tmp_path_factory.mktemp("locked"), {POOL: mock_pool()}, {"worker": POOL}, **env) as s:
        yield s


@pytest.fixture(scope="module")
def urls(locked: Stack) -> list[str]:
    """Both replicas."""
    return [locked.url, replica_of(locked, "other")]


def xylem(s: Stack, *argv: str) -> "subprocess.CompletedProcess[str]":
    return s.xylem(*argv)


def create(s: Stack, urls: list[str], name: str, *limits: str) -> str:
    """A new key, once it is valid everywhere."""
    result = xylem(s, "keys", "create", name, *limits)
    assert result.returncode == 0, result.stderr
    key = result.stdout.strip()
    wait_until(lambda: all(status(url, key) == 200 for url in urls), "the key is valid", WITHIN_S)
    return key


def status(url: str, key: str) -> int:
    return httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code


def client(url: str, key: str) -> openai.OpenAI:
    return client_of(url, api_key=key)


@pytest.fixture(scope="module")
def key(locked: Stack, urls: list[str]) -> str:
    return create(locked, urls, "alice")


def test_with_a_key_all_is_served_and_without_it_nothing_is(locked: Stack, urls: list[str], key: str) -> None:
    """The openai client raises its AuthenticationError, streamed or not."""
    for url in urls:
        with client(url, key) as good:
            assert good.completions.create(**ASK).usage.completion_tokens == 4  # type: ignore[union-attr]
            assert [m.id for m in good.models.list()] == ["mock"]
        with client(url, "none") as bad:
            for stream in (False, True):
                with pytest.raises(openai.AuthenticationError) as exc_info:
                    bad.completions.create(**ASK, stream=stream)
                assert (exc_info.value.code, exc_info.value.type) == ("invalid_api_key", "invalid_request_error")
            with pytest.raises(openai.AuthenticationError):
                bad.models.list()


@pytest.mark.parametrize("headers", [
    {}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Bearer sesame"},
    {"authorization": "Basic eDp5"}, {"x-api-key": "none"}, {"api-key": ""},
])  # fmt: skip
@pytest.mark.parametrize(("method", "path"), [
    ("POST", CHAT), ("POST", TEXT), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/v1/models"),
    ("GET", "/v1/nothing"), ("GET", "/nothing"), ("POST", "/%76%31/completions"),
])  # fmt: skip
def test_a_request_without_a_valid_key_is_refused_before_it_is_looked_at(
    locked: Stack, method: str, path: str, headers: dict[str, str]
) -> None:
    """401 in OpenAI's shape, also for what isn't there: who has no key learns nothing."""
    answer = httpx.request(method, locked.url + path, content=b"{", headers=headers)
    assert refusal(answer, 401)["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_timelines_want_a_clients_key_or_an_admins(locked: Stack) -> None:
    url = f"{locked.url}/requests/cmpl-1"
    assert refusal(httpx.get(url), 401)["code"] == "invalid_api_key"
    assert refusal(httpx.get(url, headers={"authorization": "Bearer sesame"}), 404)["code"] == "request_not_found"


@pytest.mark.parametrize(
    "path", ["/", "/live", "/health", "/ready", "/metrics", "/sd", "/version", "/docs", "/openapi.json"]
)
def test_probes_metrics_and_documentation_stay_open(locked: Stack, path: str) -> None:
    """Probes have no key."""
    assert httpx.get(locked.url + path).status_code == 200


def test_admin_wants_its_own_key_and_an_api_key_is_none(locked: Stack, key: str) -> None:
    """The admin's key is no API key either."""
    url = f"{locked.url}/admin/pools/{POOL}/limits"
    for token, expected_status in ((None, 403), (key, 403), ("sesame", 200)):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        assert httpx.get(url, headers=headers).status_code == expected_status
    assert status(locked.url, "sesame") == 401


@pytest.mark.parametrize("name", ["x-api-key", "api-key"])
def test_a_key_may_come_in_a_header_of_its_own(locked: Stack, key: str, name: str) -> None:
    """API keys and the admin's; a bearer's token comes before it, and another scheme says nothing."""
    for path, right, wrong, error_status in (
        ("/v1/models", key, "sesame", 401),
        (f"/admin/pools/{POOL}/limits", "sesame", key, 403),
    ):
        url = locked.url + path
        assert httpx.get(url, headers={name: right}).status_code == 200
        assert httpx.get(url, headers={name: right, "authorization": "Basic eDp5"}).status_code == 200
        assert httpx.get(url, headers={name: wrong, "authorization": f"Bearer {right}"}).status_code == 200
        assert httpx.get(url, headers={name: wrong}).status_code == error_status
        assert httpx.get(url, headers={name: right, "authorization": f"Bearer {wrong}"}).status_code == error_status
    answer = httpx.post(locked.url + TEXT, headers={name: key}, json={"model": "mock", "prompt": "x", "max_tokens": 2})
    assert answer.status_code == 200
    message = refusal(httpx.get(f"{locked.url}/v1/models"), 401)["message"]
    assert all(header in message for header in ("Authorization: Bearer", "x-api-key", "api-key"))


def test_a_revoked_key_is_refused_by_every_replica_and_what_runs_is_finished(locked: Stack, urls: list[str]) -> None:
    """Soon, without a restart."""
    key = create(locked, urls, "bob")
    with client(urls[0], key) as bob:
        running = bob.completions.create(**ASK | {"max_tokens": 1000}, stream=True)
        next(iter(running))
        assert xylem(locked, "keys", "revoke", "bob").returncode == 0
        wait_until(lambda: all(status(url, key) == 401 for url in urls), "both replicas refuse the key", WITHIN_S)
        with pytest.raises(openai.AuthenticationError):
            bob.completions.create(**ASK)
        *_, last = running
        assert last.choices[0].finish_reason == "length"


def test_keys_are_listed_with_their_limits_and_never_shown_again(locked: Stack, urls: list[str]) -> None:
    """A name is taken until its key is revoked."""
    key = create(locked, urls, "carol [bold]", "--rpm", "60", "--tpm", "9000")
    assert key.startswith("xyl-")
    output = xylem(locked, "keys", "list").stdout
    assert "carol [bold]" in output
    assert "60" in output
    assert "9000" in output
    assert key not in output
    again = xylem(locked, "keys", "create", "carol [bold]")
    assert again.returncode == 1
    assert "already" in again.stderr
    assert xylem(locked, "keys", "revoke", "carol [bold]").returncode == 0
    unknown = xylem(locked, "keys", "revoke", "carol [bold]")
    assert unknown.returncode == 1
    assert "no key" in unknown.stderr


def test_a_revoked_keys_name_given_to_somebody_new_opens_nothing_of_its_holder(locked: Stack, urls: list[str]) -> None:
    """Files, batches, responses and what an Idempotency-Key joins: all are of the key, and not of what it is called."""
    fields: dict[str, Any] = {"model": "mock", "input": "hello", "max_output_tokens": 4}
    once = {"Idempotency-Key": "frank's"}
    with client(urls[0], create(locked, urls, "frank")) as frank:
        file = frank.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
        batch = frank.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"of": "frank"}
        )
        response = frank.responses.create(**fields, extra_headers=once)
        assert frank.responses.retrieve(response.id).id == response.id
        assert [f.id for f in frank.files.list()] == [file.id]
        listing = xylem(locked, "keys", "list").stdout
        result = xylem(locked, "keys", "revoke", "frank")
        (id_,) = {word for word in listing.split() if word.startswith("key_") and word in result.stderr}
    with client(urls[1], create(locked, urls, "frank")) as new:
        assert id_ not in xylem(locked, "keys", "list").stdout
        assert list(new.files.list()) == []
        assert list(new.batches.list()) == []
        asks = (
            lambda: new.files.content(file.id),
            lambda: new.files.delete(file.id),
            lambda: new.batches.cancel(batch.id),
            lambda: new.responses.retrieve(response.id),
            lambda: new.responses.delete(response.id),
        )
        for ask in asks:
            with pytest.raises(openai.NotFoundError):
                ask()
        assert new.responses.create(**fields, extra_headers=once).id != response.id
    redis = locked.redis
    assert redis.zrange(f"locked:files-of:{id_}", 0, -1) == [file.id.encode()]  # an operator still finds them


def test_a_key_is_neither_in_redis_nor_in_a_log(locked: Stack, key: str) -> None:
    """Nothing that could be used in its place is there either."""
    redis = locked.redis
    key_records = redis.hgetall("locked:keys:api")
    assert b"alice" in key_records  # type: ignore[operator]
    assert key.encode() not in b"".join(key_records.values())  # type: ignore[union-attr]
    assert not redis.keys(f"*{key}*")
    for name in ("api", "other", "worker"):
        assert key not in locked.log(name)


def test_requests_over_the_limit_are_429_on_every_replica(locked: Stack, urls: list[str]) -> None:
    """The openai client raises its RateLimitError, and finds the headers that it knows."""
    key = create(locked, urls, "dave", "--rpm", "2")
    with client(urls[0], key) as one, client(urls[1], key) as two:
        raw = one.completions.with_raw_response.create(**ASK)
        assert raw.headers["x-ratelimit-limit-requests"] == "2"
        assert raw.headers["x-ratelimit-remaining-requests"] == "1"
        list(two.completions.create(**ASK, stream=True))
        for busy in (one, two):
            for stream in (False, True):
                with pytest.raises(openai.RateLimitError) as exc_info:
                    busy.completions.create(**ASK, stream=stream)
                assert (exc_info.value.type, exc_info.value.code) == ("requests", "rate_limit_exceeded")
                assert 20 <= int(exc_info.value.response.headers["retry-after"]) <= 30
                assert exc_info.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        one.models.list()  # which is no request that generates
    assert 'outcome="rate_limit_exceeded"' in httpx.get(f"{urls[0]}/metrics").text


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_and_answer_both_count_against_the_tokens_of_a_key(locked: Stack, urls: list[str], stream: bool) -> None:
    """The answer when it is over: the request that went past the limit was served, the next one waits."""
    key = create(locked, urls, f"erin-{stream}", "--tpm", "120")
    ask: dict[str, Any] = ASK | {"prompt": [5] * 50, "max_tokens": 100, "stream": stream}
    with client(urls[0], key) as one, client(urls[1], key) as two:
        answer = one.completions.create(**ask)
        if stream:
            list(answer)
        with pytest.raises(openai.RateLimitError) as exc_info:
            two.completions.create(**ask)
    assert exc_info.value.type == "tokens"
    assert 10 <= int(exc_info.value.response.headers["retry-after"]) <= 16  # 30 tokens over, at 2 a second


def test_every_replica_shows_a_request_to_its_key_and_to_an_admin_only(
    locked: Stack, urls: list[str], key: str
) -> None:
    """The request is shown while it runs and afterwards, by its whole id and with its prompts.

    It does not exist for other keys.
    """
    other = create(locked, urls, "heidi")

    def look(url: str, id_: str, with_: str) -> httpx.Response:
        return httpx.get(f"{url}/requests/{id_}", headers={"authorization": f"Bearer {with_}"}, timeout=20)

    def check(id_: str, prompts: int) -> None:
        for url in urls:
            for with_ in (key, "sesame"):
                answer = look(url, id_, with_)
                assert answer.status_code == 200, answer.text
                assert answer.json()["id"] == id_
                assert len(answer.json()["prompts"]) == prompts
            for wrong in (id_[:-1], id_.partition("-")[0], f"{id_}-0"):
                for with_ in (key, "sesame"):
                    assert refusal(look(url, wrong, with_), 404)["code"] == "request_not_found"
            assert refusal(look(url, id_, other), 404)["code"] == "request_not_found"
            assert refusal(httpx.get(f"{url}/requests/{id_}"), 401)["code"] == "invalid_api_key"

    with client(urls[0], key) as mine:
        running = mine.completions.create(**ASK | {"max_tokens": 4000}, stream=True)
        id_ = next(iter(running)).id
        check(id_, 1)
        assert look(urls[1], id_, key).json()["prompts"][0]["state"] == "answering"
        running.close()
        completion = mine.completions.create(**ASK | {"prompt": ["one", "two"]})
    check(completion.id, 2)
    assert {prompt["outcome"] for prompt in look(urls[1], completion.id, key).json()["prompts"]} == {"ok"}


@pytest.mark.parametrize(("limits", "least"), [((), -100), (("--min-priority", "0"), 0)])
def test_a_key_asks_for_no_more_urgent_priority_than_it_may(
    locked: Stack, urls: list[str], limits: tuple[str, ...], least: int
) -> None:
    """Every endpoint that generates refuses it, and names the parameter."""
    auth = {"authorization": f"Bearer {create(locked, urls, f'grace{least}', *limits)}"}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "hello"}]}, TEXT: {"prompt": "hello"},
        "/v1/responses": {"input": "hello"},
    }  # fmt: skip
    for path, body in bodies.items():
        for priority, expected_status in ((least, 200), (9, 200), (least - 1, 400), (-(2**31), 400)):
            request = {"model": "mock", "priority": priority, **body}
            answer = httpx.post(urls[0] + path, json=request, headers=auth, timeout=20)
            assert answer.status_code == expected_status, answer.text
            if expected_status == 400:
                assert refusal(answer, 400)["param"] == "priority"


def test_without_require_keys_a_key_is_ignored(valkey_url: str, tmp_path: Path) -> None:
    """Clients always send one."""
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}) as s, client(s.url, "none") as anybody:
        assert anybody.completions.create(**ASK).usage.completion_tokens == 4  # type: ignore[union-attr]


def test_on_a_public_address_admin_is_off_without_a_key(valkey_url: str, tmp_path: Path) -> None:
    """The door is closed if no admin's key is set."""
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {}, XYLEM_DEPLOYMENT="public", XYLEM_HOST="0.0.0.0") as s:
        for path in ("/admin/clear_kv_blocks", f"/admin/pools/{POOL}/clear_kv_blocks"):
            assert refusal(httpx.post(s.url + path), 403)["code"] == "forbidden"


def answered(url: str, *parts: bytes) -> bytes:
    """The server's answer to these bytes until it closes, or nothing when it just closes."""
    host, port = url.removeprefix("http://").split(":")
    data = b""
    with socket.create_connection((host, int(port)), timeout=20) as s:
        try:
            for part in parts:
                s.sendall(part)
            while chunk := s.recv(65536):
                data += chunk
        except ConnectionError:  # it closed while we wrote
            pass
    return data


def spent_s(s: Stack) -> float:
    """CPU time of the first replica, which doesn't count what the machine does besides."""
    return sum(psutil.Process(s.names["api"].pid).cpu_times()[:2])


def test_headers_over_the_limit_are_refused_as_they_come(locked: Stack) -> None:
    """431, and nothing is kept: httptools itself would collect them without end."""
    start = b"GET /live HTTP/1.1\r\nhost: x\r\nbig: "
    reply = answered(locked.url, start + b"a" * (64 * 1024 - len(start) + 1))
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert b"headers_too_large" in reply


def test_what_is_no_http_is_refused_in_openais_shape(locked: Stack) -> None:
    """Although no handler ever sees it."""
    head, _, body = answered(locked.url, b"nonsense\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("parts", [
    [b"GET /live HTTP/1.1\r\nbig: ", *[b"a" * 2**16] * 16],
    [b"GET /live HTTP/1.1\r\n", *[b"x: " + b"a" * 1000 + b"\r\n"] * 1000],
    [b"GET /", *[b"a" * 2**16] * 16],
    [b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", *[b"x: " + b"a" * 2**16] * 16],
    [b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;", *[b"a" * 2**16] * 16],
])  # fmt: skip
def test_a_megabyte_that_is_no_body_ends_its_connection_and_nothing_else(locked: Stack, parts: list[bytes]) -> None:
    """One header, many, a URL, trailers, a chunk's extension."""
    before = spent_s(locked)
    reply = answered(locked.url, *parts)
    assert spent_s(locked) - before < 5
    assert b"200" not in reply.partition(b"\r\n")[0]
    assert httpx.get(f"{locked.url}/live").status_code == 200


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, b'{"model": "mock", "messages": [' + b"0," * 4_000_000 + b"0]}"),
    (CHAT, b'{"model": "mock", "messages": [' + b'{"role":"user","content":""},' * 200_000 + b"0]}"),
    (CHAT, b'{"model": "mock", "messages": ' + b"[" * 1_000_000),
    (TEXT, b'{"model": "mock", "prompt": [' + b"{}," * 2_000_000 + b"0]}"),
    (TEXT, b'{"model": "mock", "prompt": "x"' + b"".join(b',"%d":0' % i for i in range(300_000)) + b"}"),
    (TEXT, b'{"model": "mock", "prompt": [' + b"5," * 4_000_000 + b"5]}"),
])  # fmt: skip
def test_a_large_body_that_is_all_wrong_is_refused_without_going_through_all_of_it(
    locked: Stack, key: str, path: str, body: bytes
) -> None:
    """A million errors would be a million objects, and nobody else would be served meanwhile."""
    before = spent_s(locked)
    answer = httpx.post(locked.url + path, content=body, headers=JSON | {"authorization": f"Bearer {key}"}, timeout=60)
    assert spent_s(locked) - before < 5
    refusal(answer, 413)


class _Payload:
    """A payload that makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_pickled_message_in_a_workers_queue_is_never_unpickled(locked: Stack, key: str, tmp_path: Path) -> None:
    """Code that a client writes to the queue never runs; the worker goes on."""
    (lease,) = leases(locked, POOL)
    options = {"global_keyprefix": "locked:"}
    with Connection(locked.redis_url, transport_options=options) as connection:
        connection.default_channel.basic_publish(
            connection.default_channel.prepare_message(
                pickle.dumps(((), {}, _Payload(tmp_path / "owned"))),
                content_type="application/x-python-serialize",
                content_encoding="binary",
                headers={"task": "app.tasks.decode.decode", "id": "x", "lang": "py"},
            ),
            "",
            f"{POOL}.{lease.worker.id}",
        )
    wait_until(lambda: "ContentDisallowed" in locked.log("worker"), "the worker refuses it")
    assert not (tmp_path / "owned").exists()
    with client(locked.url, key) as good:
        assert good.completions.create(**ASK).usage.completion_tokens == 4  # type: ignore[union-attr]


def test_flower_listens_on_this_machine_only_and_asks_for_a_password_where_one_is_set(locked: Stack) -> None:
    """The default address is a safe one."""
    url, flower = locked.flower(FLOWER_BASIC_AUTH="me:secret")
    listening = [c.laddr.ip for c in psutil.Process(flower.pid).net_connections() if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]
    assert httpx.get(f"{url}/workers").status_code == 401
    assert httpx.post(f"{url}/api/worker/shutdown/x").status_code == 401
    assert httpx.get(f"{url}/workers", auth=("me", "secret")).status_code == 200
