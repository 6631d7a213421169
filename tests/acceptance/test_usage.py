"""Usage, from clients' requests to reports: real processes, and answers' own `usage` to compare with."""

import csv
import io
import signal
import subprocess
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow.parquet
import pytest
from openai import OpenAI

from app.ids import BATCH_QUEUE, TenantId, new_key_id
from app.messages.wire import encode
from app.tenants.records import ApiKey, Price, Tenant
from tests.batching import TEXT, ended, line, lines_of, submitted
from tests.serving import begin, client_of
from tests.stack import BIN, Stack, mock_pool, stack, valkey, wait_until

ADMIN = {"authorization": "Bearer admin"}
SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


def writer(s: Stack) -> "subprocess.Popen[bytes]":
    return s.spawn("usage", str(BIN / "python"), "-m", "app.cli", "usage", "write")


def xylem(s: Stack, *argv: str) -> str:
    result = s.xylem(*argv)
    result.check_returncode()
    return result.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    path = tmp_path_factory.mktemp("usage")
    pools = {"decode-pool-a": mock_pool(), "embedding-pool": mock_pool(model="embeds") | {"task": "embed"}}
    env = {"XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": "admin", "XYLEM_HOME": str(path)}
    with valkey(path) as url, stack(url, path, pools, **env) as s:
        s.redis.hset("xylem:prices", "mock", encode(Price(1e6, 0.5e6, 2e6)))
        writer(s)
        begin(s, {**{pool: pool for pool in pools}, "batch": BATCH_QUEUE})
        wait_until(lambda: "usage_writer_started" in s.log("usage"), "it has made its tables")
        yield s


def client(s: Stack, name: str, tenant: str) -> OpenAI:
    """A client with a new key of a tenant."""
    token = f"xyl-{name}"
    key = ApiKey(name, sha256(token.encode()).digest(), time.time(), id=new_key_id(), tenant=TenantId(tenant))
    s.redis.hset("xylem:tenants", tenant, encode(Tenant(TenantId(tenant))))
    s.redis.hset("xylem:keys:api", name, encode(key))
    valid = {"authorization": f"Bearer {token}"}
    wait_until(lambda: httpx.get(f"{s.url}/v1/models", headers=valid).is_success, "the key is valid")
    return client_of(s.url, api_key=token)


def asked(s: Stack, path: str = "/admin/usage", **params: str) -> Any:
    answer = httpx.get(s.url + path, params=params, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return answer.json()


def of_tenant(s: Stack, tenant: str) -> dict[str, Any]:
    rows = asked(s, tenant=tenant)["data"]
    return rows[0] if rows else dict.fromkeys(SUMS, 0)


def written(s: Stack) -> bool:
    return bool(s.redis.xlen("xylem:usage") == 0)


def sums(*usages: Any) -> list[int]:
    """Sums of the answers' own `usage`: requests, prompt tokens, cached tokens and completion tokens."""
    cached_counts = [u.prompt_tokens_details.cached_tokens if hasattr(u, "completion_tokens") else 0 for u in usages]
    output_counts = [getattr(u, "completion_tokens", 0) for u in usages]
    return [len(usages), sum(u.prompt_tokens for u in usages), sum(cached_counts), sum(output_counts)]


def test_usage_is_the_sum_of_what_answers_say(served: Stack) -> None:
    """Whole and streamed, of several choices, embeddings; and no other tenant's."""
    s = served
    red, blue = client(s, "red-1", "red"), client(s, "blue-1", "blue")
    chat: Any = {"model": "mock", "messages": [{"role": "user", "content": "one two three " * 20}], "max_tokens": 7}
    usages = [red.chat.completions.create(**chat).usage for _ in range(3)]
    usages.append(red.chat.completions.create(**chat, n=3).usage)
    stream = red.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
    usages += [chunk.usage for chunk in stream if chunk.usage]
    usages.append(red.completions.create(model="mock", prompt=["a b", "c d e"], max_tokens=5).usage)
    usages.append(red.embeddings.create(model="embeds", input=["hello there", "and you"]).usage)
    cut = {"model": "embeds", "texts": ["hello there and you " * 9], "max_tokens": 5}
    embedding = httpx.post(f"{s.url}/v2/embed", json=cut, headers={"x-api-key": red.api_key}).json()
    assert embedding["meta"]["billed_units"]["input_tokens"] == 5
    usages.append(SimpleNamespace(prompt_tokens=5))
    other = blue.chat.completions.create(**chat).usage
    wait_until(lambda: of_tenant(s, "red")["requests"] == len(usages) and written(s), "all are written")
    row = of_tenant(s, "red")
    assert [row[name] for name in SUMS] == sums(*usages)
    assert row["cached_tokens"] > 0
    assert [of_tenant(s, "blue")[name] for name in SUMS] == sums(other)
    (mock,) = [r for r in asked(s, group_by="model", tenant="red")["data"] if r["model"] == "mock"]
    plain = mock["prompt_tokens"] - mock["cached_tokens"]
    assert mock["cost"] == plain + mock["cached_tokens"] * 0.5 + mock["completion_tokens"] * 2
    assert mock["engine_s"] > 0


def test_a_tenant_sees_its_own_usage_only_and_no_key_sees_all(served: Stack) -> None:
    s = served
    one, two = client(s, "own-1", "own"), client(s, "foreign-1", "foreign")
    for each in (one, two, two):
        each.completions.create(model="mock", prompt="hello", max_tokens=2)
    wait_until(lambda: of_tenant(s, "foreign")["requests"] == 2 and of_tenant(s, "own")["requests"] == 1, "written")
    mine: Any = one.get("/usage", cast_to=object, options={"params": {"group_by": "tenant"}})
    assert [(row["tenant"], row["requests"]) for row in mine["data"]] == [("own", 1)]
    for path in ("/admin/usage", "/v1/organization/usage/completions?start_time=0"):
        assert httpx.get(s.url + path, headers={"authorization": f"Bearer {one.api_key}"}).status_code == 403
    assert httpx.get(f"{s.url}/v1/usage").status_code == 401


def test_a_client_of_openais_organization_usage_gets_its_shape(served: Stack) -> None:
    s = served
    team = client(s, "organised-1", "organised")
    usages = [team.completions.create(model="mock", prompt=f"hello {i}", max_tokens=3).usage for i in range(4)]
    team.embeddings.create(model="embeds", input="not generated")
    wait_until(lambda: of_tenant(s, "organised")["requests"] == 5, "all are written")
    admin, now = OpenAI(base_url=f"{s.url}/v1", api_key="admin"), int(time.time())
    params: dict[str, Any] = {"start_time": now - 3600, "bucket_width": "1h", "project_ids": ["organised"]}
    params["group_by"] = ["project_id", "api_key_id", "model"]
    page: Any = admin.get("/organization/usage/completions", cast_to=object, options={"params": params})
    results = [result for bucket in page["data"] for result in bucket["results"]]
    requests, prompt, cached_tokens, output_tokens = sums(*usages)
    assert sum(r["num_model_requests"] for r in results) == requests
    token_sums = [sum(r[f"{name}_tokens"] for r in results) for name in ("input", "input_cached", "output")]
    assert token_sums == [prompt, cached_tokens, output_tokens]
    assert {(r["project_id"], r["model"], r["object"]) for r in results} == {
        ("organised", "mock", "organization.usage.completions.result")
    }
    assert all(r["api_key_id"].startswith("key_") for r in results)
    assert (page["object"], page["has_more"], page["next_page"]) == ("page", False, None)


def test_lines_of_a_batch_leave_records_with_its_id(served: Stack) -> None:
    s = served
    team = client(s, "batching-1", "batching")
    body = {"model": "mock", "prompt": "hello", "max_tokens": 3}
    batch = ended(team, submitted(team, [line(str(i), TEXT, **body) for i in range(5)], TEXT))
    wait_until(lambda: of_tenant(s, "batching")["requests"] == 5, "all are written")
    output = lines_of(team, batch.output_file_id)
    answers = [one["response"]["body"]["usage"] for one in output]
    records = csv.DictReader(xylem(s, "usage", "export", "-", "--tenant", "batching").splitlines())
    ids = {(r["id"], r["x_request_id"]) for r in records}
    assert ids == {(a["id"], a["response"]["request_id"]) for a in output}
    (row,) = asked(s, tenant="batching", group_by="batch,key")["data"]
    assert (row["batch"], row["key_name"]) == (batch.id, "batching-1")
    assert row["prompt_tokens"] == sum(a["prompt_tokens"] for a in answers)
    assert row["completion_tokens"] == sum(a["completion_tokens"] for a in answers) == 15


def test_a_request_whose_client_left_has_used_what_it_was_answered(served: Stack) -> None:
    s = served
    team = client(s, "leaving-1", "leaving")
    stream = team.completions.create(model="mock", prompt="hello", max_tokens=1000, stream=True)
    for _ in range(3):
        next(iter(stream))
    stream.close()
    wait_until(lambda: of_tenant(s, "leaving")["requests"] == 1, "it is written")
    (row,) = asked(s, tenant="leaving", group_by="outcome")["data"]
    assert row["outcome"] == "cancelled"
    assert 3 <= row["completion_tokens"] < 1000
    assert row["prompt_tokens"] > 0


def test_a_killed_writers_successor_writes_nothing_twice(served: Stack) -> None:
    s = served
    team = client(s, "killed-1", "killed")
    usages = []
    for number in range(40):
        usages.append(team.completions.create(model="mock", prompt=f"hello {number}", max_tokens=2).usage)
        if number % 10 == 5:
            s.names["usage"].send_signal(signal.SIGKILL)
            s.names["usage"].wait()
            writer(s)
    wait_until(lambda: written(s) and of_tenant(s, "killed")["requests"] >= 40, "all are written", 60)
    assert [of_tenant(s, "killed")[name] for name in SUMS] == sums(*usages)


def test_reports_are_the_same_as_csv_as_parquet_and_on_the_command_line(served: Stack, tmp_path: Path) -> None:
    s = served
    team = client(s, "reports-1", "reports")
    for _ in range(2):
        team.completions.create(model="mock", prompt="hello", max_tokens=2)
    wait_until(lambda: of_tenant(s, "reports")["requests"] == 2, "all are written")
    rows = asked(s, tenant="reports", group_by="tenant,model")["data"]
    where = f"{s.url}/admin/usage?tenant=reports&group_by=tenant,model"
    as_csv = httpx.get(where, headers=ADMIN | {"accept": "text/csv"})
    assert as_csv.headers["content-type"].startswith("text/csv")
    (row,) = csv.DictReader(io.StringIO(as_csv.text))
    assert row == {name: str(value) for name, value in rows[0].items()}
    as_parquet = httpx.get(f"{where}&format=parquet", headers=ADMIN).content
    assert pyarrow.parquet.read_table(io.BytesIO(as_parquet)).to_pylist() == rows
    xylem(s, "usage", "export", str(tmp_path / "all.parquet"), "--tenant", "reports")
    each = pyarrow.parquet.read_table(tmp_path / "all.parquet").to_pylist()
    assert [(r["tenant"], r["outcome"], r["completion_tokens"]) for r in each] == [("reports", "ok", 2)] * 2
    assert "reports" in xylem(s, "usage", "show", "--by", "tenant")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/admin/usage?group_by=team", "'group_by' has 'team'"),
        ("/admin/usage?from=tomorrow", "'from'='tomorrow' has to be seconds"),
        ("/admin/usage?from=2025-01-02&to=2025-01-01", "has to be before"),
        ("/v1/organization/usage/completions?start_time=5&end_time=5", "'end_time' (5) has to be after"),
        ("/v1/organization/usage/completions?start_time=0&limit=99", "'limit' (99) has to be from 1 to 31"),
        ("/v1/organization/usage/completions?start_time=0&page=x", "is not a 'next_page'"),
    ],
)
def test_a_bad_question_is_refused_by_name(served: Stack, path: str, named: str) -> None:
    answer = httpx.get(served.url + path, headers=ADMIN)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
