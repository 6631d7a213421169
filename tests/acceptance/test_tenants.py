"""Tenants and their keys, over real processes: the command line, a file, /admin, tokens, and what each may ask for."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
import yaml
from openai.types import Batch

from app.batch.records import RECORD
from app.keys import Keys
from app.messages.wire import encode
from app.tenants.api_keys import digest_of
from app.tenants.records import ApiKey
from tests.acceptance.test_bad_input import refusal
from tests.batching import ended, line, submitted
from tests.issuer import AUDIENCE, Issuer, issuing
from tests.serving import client_of, serving
from tests.stack import BIN, ROOT, Stack, mock_pool, wait_until

POOL = "decode-pool-a"
ASK: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": "hello"}]}
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as one:
        yield one


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Stack]:
    env = {
        "XYLEM_DEPLOYMENT": "teams",
        "XYLEM_REQUIRE_KEYS": "true",
        "XYLEM_ADMIN_KEY": "sesame",
        "XYLEM_OIDC_ISSUER": issuer.url,
        "XYLEM_OIDC_AUDIENCE": AUDIENCE,
        "XYLEM_OIDC_MODELS_CLAIM": "scope.models",
        "XYLEM_OIDC_ADMIN": "groups=operators",
    }
    workers = {"worker": POOL, "batch": "batch"}
    with serving(valkey_url, tmp_path_factory.mktemp("teams"), {POOL: mock_pool(step_ms=0.5)}, workers, **env) as s:
        admin(s, "PATCH", "/admin/aliases", {"aliases": {"small": {"primary": "mock"}}})
        admin(s, "PUT", "/admin/tenants/blue", {})
        yield s


def admin(s: Stack, method: str, path: str, body: Any = None, key: str = "sesame", status: int = 200) -> Any:
    answer = httpx.request(method, s.url + path, json=body, headers={"x-api-key": key}, timeout=90)
    assert answer.status_code == status, answer.text
    return answer.json()


def xylem(s: Stack, *argv: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    result = s.xylem(*argv)
    assert result.returncode == code, result.stderr
    return result


def made_key(s: Stack, name: str, **limits: Any) -> str:
    """Valid at once at the replica that made it."""
    key: str = admin(s, "POST", "/admin/keys", {"name": name, **limits})["key"]
    return key


def chat(s: Stack, key: str, **asked: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{s.url}/v1/chat/completions", json=ASK | asked, headers=headers, timeout=20)


def completion_tokens(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["usage"]["completion_tokens"]
    return tokens


def test_a_key_asks_for_its_models_only_and_sees_no_others(served: Stack) -> None:
    """An alias is a name of its own; the refusal is OpenAI's, and doesn't tell whether there is such a model."""
    key = made_key(served, "one-model", models=["small"])
    with client_of(served.url, api_key=key) as client:
        assert [model.id for model in client.models.list()] == ["small"]
        for name in ("mock", "nothing"):
            with pytest.raises(openai.NotFoundError, match="does not exist or you do not have access") as exc_info:
                client.chat.completions.create(**ASK | {"model": name})
            assert (exc_info.value.code, exc_info.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve(name)
        for path, body in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/responses", {"input": "x"}),
            ("/v1/embeddings", {"input": "x"}),
            ("/v1/images/generations", {"prompt": "x"}),
            ("/v1/messages", {"messages": ASK["messages"], "max_tokens": 3}),
            ("/tokenize", {"prompt": "x"}),
            ("/v1/rerank", {"query": "x", "documents": ["y"]}),
            ("/v2/embed", {"texts": ["x"]}),
        ):
            answer = httpx.post(served.url + path, json={"model": "mock", **body}, headers={"x-api-key": key})
            assert answer.status_code == 404, (path, answer.text)
            assert "access" in answer.text, path
        assert httpx.get(f"{served.url}/v2/models/mock", headers={"x-api-key": key}).status_code == 404
        assert client.chat.completions.create(**ASK | {"model": "small", "max_tokens": 3}).usage is not None


def test_an_answer_is_as_long_as_the_key_and_its_tenant_allow(served: Stack) -> None:
    """An answer that is asked for and too long is refused with the parameter's name.

    If nothing is asked for, it is cut, also below the completions' 16.
    """
    admin(served, "PUT", "/admin/tenants/short", {"max_tokens": 9, "default_max_tokens": 5})
    key = made_key(served, "short-1", tenant="short")
    mine = made_key(served, "short-2", tenant="short", default_max_tokens=7, max_tokens=100)
    plain = made_key(served, "long")
    endless = {"ignore_eos": True}
    assert completion_tokens(chat(served, key, **endless)) == 5
    assert completion_tokens(chat(served, mine, **endless)) == 7
    assert completion_tokens(chat(served, key, **endless, max_tokens=9)) == 9
    for field in ("max_tokens", "max_completion_tokens"):
        error = refusal(chat(served, mine, **{field: 10}), 400)
        assert error["param"] == field
        assert "10 is over 9" in error["message"]
    assert completion_tokens(chat(served, plain, **endless, max_tokens=40)) == 40

    def text(key: str, **asked: Any) -> int:
        body = {"model": "mock", "prompt": "x", "ignore_eos": True, **asked}
        return completion_tokens(httpx.post(f"{served.url}/v1/completions", json=body, headers={"x-api-key": key}))

    assert (text(key), text(plain), text(key, max_tokens=9)) == (5, 16, 9)
    answer = httpx.post(
        f"{served.url}/v1/responses", json={"model": "mock", "input": "x", "max_output_tokens": 10},
        headers={"x-api-key": key},
    )  # fmt: skip
    assert refusal(answer, 400)["param"] == "max_output_tokens"


def test_priorities_stay_within_the_range_of_key_and_tenant(served: Stack) -> None:
    """Whichever is stricter; the usual one is that of requests that name none."""
    admin(served, "PUT", "/admin/tenants/patient", {"min_priority": -5})
    key = made_key(served, "patient-1", tenant="patient", min_priority=-50, default_priority=3)
    assert chat(served, key, priority=-5, max_tokens=1).status_code == 200
    assert refusal(chat(served, key, priority=-6, max_tokens=1), 400)["param"] == "priority"


def test_a_key_expires_by_itself_and_so_does_a_tenant(served: Stack) -> None:
    """401 that says so; a later date opens it again, without a restart."""
    key = made_key(served, "brief", expires="2020-01-31")
    assert "has expired" in refusal(chat(served, key), 401)["message"]
    admin(served, "PATCH", "/admin/keys/brief", {"expires": "2999-01-31"})
    assert chat(served, key, max_tokens=1).status_code == 200
    admin(served, "PUT", "/admin/tenants/gone", {"expires": "2020-01-31"})
    admin(served, "PATCH", "/admin/keys/brief", {"tenant": "gone"})
    assert "tenant" in refusal(chat(served, key), 401)["message"]


def test_files_have_the_smaller_quota_of_key_and_tenant(served: Stack) -> None:
    """Bytes, of each key."""
    admin(served, "PUT", "/admin/tenants/tidy", {"file_quota": 10 + RECORD})
    key = made_key(served, "tidy-1", tenant="tidy", file_quota=1000 + 2 * RECORD)
    with client_of(served.url, api_key=key) as client:
        client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
        with pytest.raises(openai.PermissionDeniedError, match=f"{10 + RECORD} bytes"):
            client.files.create(file=("in.jsonl", b"{}" * 6), purpose="batch")


def test_no_batch_begins_when_files_have_more_than_their_quota(served: Stack) -> None:
    """Results are stored whatever their size: one small file could fill the storage, batch after batch."""
    key = made_key(served, "hoarder")
    with client_of(served.url, api_key=key) as client:
        file = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch").id
        batch: Any = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        admin(served, "PATCH", "/admin/keys/hoarder", {"file_quota": 3 + RECORD})
        client.batches.create(**batch)
        admin(served, "PATCH", "/admin/keys/hoarder", {"file_quota": 2 + RECORD})  # as results would have it
        with pytest.raises(openai.PermissionDeniedError, match=f"{3 + RECORD} of the {2 + RECORD} bytes") as exc_info:
            client.batches.create(**batch)
        assert (exc_info.value.code, exc_info.value.param) == ("file_quota_exceeded", "input_file_id")


def test_uploads_and_new_batches_are_requests(served: Stack) -> None:
    """A key of few a minute could make thousands of either, and fill Redis with their records."""
    headers = {"x-api-key": made_key(served, "uploader", requests_per_min=2)}

    def uploaded(name: str = "in.jsonl") -> httpx.Response:
        file = {"file": (name, b"{}\n")}
        return httpx.post(f"{served.url}/v1/files", data={"purpose": "batch"}, files=file, headers=headers, timeout=20)

    assert refusal(uploaded("x" * 256), 400)["param"] == "file"
    file = uploaded("x" * 255).json()["id"]
    batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    for answer in (uploaded(), httpx.post(f"{served.url}/v1/batches", json=batch, headers=headers, timeout=20)):
        assert refusal(answer, 429)["code"] == "rate_limit_exceeded"
    assert httpx.get(f"{served.url}/v1/files", headers=headers).status_code == 200, "to look at them is none"


def test_the_files_of_a_tenants_keys_have_its_quota_together(served: Stack) -> None:
    """The files of a revoked key count too, as long as they are there."""
    most = 10 + 2 * RECORD
    admin(served, "PUT", "/admin/tenants/shelf", {"file_quota": most})
    keys = [made_key(served, f"shelf-{n}", tenant="shelf") for n in range(2)]
    first, second = (client_of(served.url, api_key=key) for key in keys)
    first.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    admin(served, "DELETE", "/admin/keys/shelf-0")
    with pytest.raises(
        openai.PermissionDeniedError, match=f"your tenant have {3 + RECORD} of the {10 + 2 * RECORD} bytes"
    ):
        second.files.create(file=("in.jsonl", b"{}{}{}{}"), purpose="batch")
    second.files.create(file=("in.jsonl", b"{}{}{}\n"), purpose="batch")
    with pytest.raises(openai.PermissionDeniedError, match=f"{most} of the {most} bytes"):
        second.files.create(file=("in.jsonl", b"\n"), purpose="batch")


def test_the_kept_answers_of_a_tenants_keys_have_its_bytes_together(served: Stack) -> None:
    """Each is some hundred bytes."""
    admin(served, "PUT", "/admin/tenants/diary", {"keep_bytes": 2500})
    first, second = (made_key(served, f"diary-{n}", tenant="diary") for n in range(2))
    count = 0
    while (answer := chat(served, first, store=True, max_tokens=1)).status_code == 200:
        count += 1
    assert "this tenant" not in refusal(answer, 429)["message"]  # for one key alone it is as its own
    assert count
    assert "this tenant" in refusal(chat(served, second, store=True), 429)["message"]
    admin(served, "PUT", "/admin/tenants/diary", {"keep_bytes": 100})
    response = httpx.post(f"{served.url}/v1/conversations", json={}, headers={"x-api-key": second})
    assert refusal(response, 429)["code"] == "kept_answers_full"


def test_kept_answers_have_the_bytes_that_the_key_may_have(served: Stack) -> None:
    """429 as for all clients together."""
    key = made_key(served, "forgetful", keep_bytes=100)
    assert refusal(chat(served, key, store=True), 429)["code"] == "kept_answers_full"
    response = httpx.post(f"{served.url}/v1/conversations", json={}, headers={"x-api-key": key})
    assert refusal(response, 429)["code"] == "kept_answers_full"
    assert chat(served, key, max_tokens=1).status_code == 200


def batch(client: openai.OpenAI, bodies: list[dict[str, Any]]) -> Batch:
    return submitted(client, [line(str(n), **body) for n, body in enumerate(bodies)])


def test_the_batches_of_a_tenants_keys_have_its_lines_together(served: Stack) -> None:
    """The lines left of batches that have not ended count: the slow key has one line a minute."""
    admin(served, "PUT", "/admin/tenants/mill", {"batch_lines": 4})
    keys = (
        made_key(served, "mill-0", tenant="mill", batch_requests_per_min=1),
        made_key(served, "mill-1", tenant="mill"),
    )
    slow, other = (client_of(served.url, api_key=key) for key in keys)
    body = {**ASK, "max_tokens": 1}
    first = batch(slow, [body] * 4)
    wait_until(lambda: slow.batches.retrieve(first.id).request_counts.completed == 1, "one line is answered", 60)
    over = ended(other, batch(other, [body] * 2))
    assert over.status == "failed"
    assert "Your tenant's unfinished batches have at most 4 lines" in over.errors.data[0].message
    assert ended(other, batch(other, [body])).status == "completed"
    slow.batches.cancel(first.id)


def test_lines_of_a_batch_are_within_its_keys_limits(served: Stack) -> None:
    """Too many fail the batch; one for another model or with too long an answer fails itself; others are cut."""
    key = made_key(served, "lines", batch_lines=4, models=["mock"], max_tokens=6, default_max_tokens=3)
    body = {**ASK, "ignore_eos": True}
    bodies = [body, {**body, "max_tokens": 6}, {**body, "max_tokens": 7}, {**body, "model": "small"}]

    with client_of(served.url, api_key=key) as client:
        over = ended(client, batch(client, [*bodies, body]))
        assert over.status == "failed"
        assert "at most 4 lines" in over.errors.data[0].message
        end_state = ended(client, batch(client, bodies))
        assert (end_state.request_counts.completed, end_state.request_counts.failed) == (2, 2)
        answers = [json.loads(line) for line in client.files.content(end_state.output_file_id).text.splitlines()]
        tokens = {a["custom_id"]: a["response"]["body"]["usage"]["completion_tokens"] for a in answers}
        assert tokens == {"0": 3, "1": 6}
        failures = [json.loads(line) for line in client.files.content(end_state.error_file_id).text.splitlines()]
        codes = {f["custom_id"]: f["response"]["body"]["error"]["code"] for f in failures}
        assert codes == {"2": "invalid_value", "3": "model_not_found"}


def test_limits_changed_by_a_command_hold_without_a_restart(served: Stack) -> None:
    """Within two seconds or so."""
    key = xylem(served, "keys", "create", "dora", "--models", "small", "--tenant", "blue").stdout.strip()
    wait_until(lambda: chat(served, key, model="small", max_tokens=1).status_code == 200, "it is valid", WITHIN_S)
    assert chat(served, key, max_tokens=1).status_code == 404
    xylem(served, "keys", "set", "dora", "--models", "none", "--max-tokens", "4")
    wait_until(lambda: chat(served, key, max_tokens=1).status_code == 200, "all models are allowed", WITHIN_S)
    assert chat(served, key, max_tokens=5).status_code == 400
    outcome = xylem(served, "tenants", "set", "blue", "--max-tokens", "2", "--budget", "$1000000/day")
    card = yaml.safe_load(outcome.stdout)["tenants"]["blue"]
    assert (card["max_tokens"], card["budget"], "dora" in card["keys"]) == (2, "$1000000/day", True), "its new state"
    assert "no model has a price" in outcome.stderr
    assert "XYLEM_REQUIRE_KEYS" not in outcome.stderr
    wait_until(lambda: chat(served, key, max_tokens=3).status_code == 400, "the tenant's holds, too", WITHIN_S)
    xylem(served, "tenants", "set", "blue", "--max-tokens", "none", "--budget", "none")
    wait_until(lambda: chat(served, key, max_tokens=3).status_code == 200, "it holds no more", WITHIN_S)
    assert "4" in xylem(served, "keys", "list").stdout
    stderr = xylem(served, "keys", "create", "eve", "--tenant", "nowhere", code=1).stderr
    assert "nowhere" in stderr
    for wrong, mention in (
        (("--budget", "5euros/day"), "--budget='5euros/day'"),
        (("--rpm", "0"), "--rpm"),
        (("--expires", "soon"), "--expires"),
        (("--default-max-tokens", "9", "--max-tokens", "3"), "max_tokens=3"),
    ):
        assert mention.split("=")[0] in xylem(served, "keys", "create", "eve", *wrong, code=2).stderr


def test_a_key_of_another_service_is_imported_by_its_digest(served: Stack) -> None:
    """The key itself is never sent here; and no second name gets it."""
    import hashlib

    digest = hashlib.sha256(b"sk-of-old").hexdigest()
    xylem(served, "keys", "import", "old", "--sha256", digest, "--rpm", "600")
    wait_until(lambda: chat(served, "sk-of-old", max_tokens=1).status_code == 200, "it is valid", WITHIN_S)
    assert "old" in xylem(served, "keys", "import", "again", "--sha256", digest, code=1).stderr
    assert "sha256" in xylem(served, "keys", "import", "again", "--sha256", "abc", code=2).stderr


FILE = """
tenants:
  file-a:
    weight: 3
    budget: 1000000tokens/month
    keys:
      file-key: {sha256: %s, max_tokens: 5, expires: 2999-01-31}
  file-b: {requests_per_min: 60}
prices:
  mock: {input: 0.5, output: 1.5}
"""


def test_a_file_is_applied_as_a_whole_or_not_at_all(served: Stack, tmp_path: Path) -> None:
    """The changes are shown first; the same file once more changes nothing; keys made by hand stay."""
    import hashlib

    file = tmp_path / "tenants.yaml"
    by_hand = made_key(served, "by-hand")
    before = admin(served, "GET", "/admin/tenants"), admin(served, "GET", "/admin/keys")
    good = FILE % hashlib.sha256(b"of-the-file").hexdigest()
    for wrong, mention in (
        (good.replace("weight: 3", "weight: -3"), "tenants.file-a.weight=-3"),
        (good.replace("60", "many"), "tenants.file-b.requests_per_min='many'"),
        (good.replace("tokens/month", "tokens/year"), "tenants.file-a.budget"),
        (good.replace("output", "outputs"), "prices.mock.outputs"),
        (good.replace("sha256:", "max_tokens: 5, sha256:", 1), "max_tokens"),
    ):
        file.write_text(wrong)
        assert mention in xylem(served, "tenants", "apply", str(file), "--yes", code=2).stderr
    file.write_text(good)
    output = xylem(served, "tenants", "apply", str(file), "--dry-run").stdout
    assert "+ tenant file-a" in output
    assert (admin(served, "GET", "/admin/tenants"), admin(served, "GET", "/admin/keys")) == before
    result = subprocess.run(
        [str(BIN / "xylem"), "tenants", "apply", str(file)], cwd=ROOT, env=served.environment(), input="n\n",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert admin(served, "GET", "/admin/tenants") == before[0]

    keep = xylem(served, "tenants", "apply", str(file), "--yes").stderr
    assert "key by-hand" in keep
    names = {tenant["name"]: tenant for tenant in admin(served, "GET", "/admin/tenants")["data"]}
    assert names["file-a"]["weight"] == 3
    assert names["file-b"]["requests_per_min"] == 60
    assert "blue" in names  # it has a key that was made by hand
    assert admin(served, "GET", "/admin/prices")["prices"]["mock"]["output"] == 1.5
    wait_until(lambda: chat(served, "of-the-file", max_tokens=1).status_code == 200, "its key is valid", WITHIN_S)
    assert chat(served, "of-the-file", max_tokens=6).status_code == 400
    assert chat(served, by_hand, max_tokens=1).status_code == 200
    assert "nothing changes" in xylem(served, "tenants", "apply", str(file), "--yes").stderr
    file.write_text("prices: {}\n")
    xylem(served, "tenants", "apply", str(file), "--yes")
    assert admin(served, "GET", "/admin/prices")["prices"] == {}
    assert admin(served, "GET", "/admin/tenants/file-a")["keys"] == 1


def test_a_tenant_with_keys_is_not_removed(served: Stack) -> None:
    """Its keys would be nobody's."""
    admin(served, "PUT", "/admin/tenants/left", {})
    made_key(served, "last", tenant="left")
    assert "last" in admin(served, "DELETE", "/admin/tenants/left", status=400)["error"]["message"]
    assert "last" in xylem(served, "tenants", "remove", "left", code=1).stderr
    admin(served, "DELETE", "/admin/keys/last")
    admin(served, "DELETE", "/admin/tenants/left")
    admin(served, "GET", "/admin/tenants/left", status=404)


def test_admin_endpoints_tell_what_is_wrong(served: Stack) -> None:
    """Name and value."""
    for method, path, body, status, param in (
        ("PUT", "/admin/tenants/a%20b", {}, 400, "tenant"),
        ("PUT", "/admin/tenants/a", {"weight": 0}, 400, "weight"),
        ("PUT", "/admin/tenants/a", {"default_priority": -9, "min_priority": -3}, 400, None),
        ("PATCH", "/admin/tenants/nowhere", {}, 404, "tenant"),
        ("POST", "/admin/keys", {"name": "x", "tenant": "nowhere"}, 404, "tenant"),
        ("POST", "/admin/keys", {"name": "x", "sha256": "00"}, 400, "sha256"),
        ("POST", "/admin/keys", {"name": "x", "budget": "5/day"}, 400, "budget"),
        *(("POST", "/admin/keys", {"name": name}, 400, "name") for name in ("x/", "x/y", ".", "..", "x\n", " ")),
        ("PUT", "/admin/tenants/%2E", {}, 400, "tenant"),
        ("PUT", "/admin/tenants/%2E%2E", {}, 400, "tenant"),
        ("PATCH", "/admin/tenants/blue%2F", {}, 404, None),
        ("PATCH", "/admin/keys/nobody", {}, 404, "key"),
        ("DELETE", "/admin/keys/nobody", None, 404, "key"),
        ("PATCH", "/admin/prices", {"prices": {"m": {"input": -1}}}, 400, "prices.m.input"),
        ("GET", "/admin/audit?after=x", None, 400, "after"),
    ):
        assert admin(served, method, path, body, status=status)["error"]["param"] == param, path
    assert httpx.get(f"{served.url}/admin/tenants").status_code == 403


def test_an_encoded_slash_in_a_path_is_part_of_a_name(served: Stack) -> None:
    """`zz%2F` revoked `zz`. No new key has a slash in its name; those of before are reached by path and by command."""
    for name in ("zz", "a ?#%2F;é"):
        made_key(served, name)
    for name in ("zz/", "zz/y", "yy/", "yy/y"):  # made by an older version
        record = ApiKey(name, digest_of(name), 1.0)
        served.redis.hset(Keys("teams").api_keys(), name, encode(record))
    admin(served, "DELETE", "/admin/keys/zz%2F")
    admin(served, "DELETE", "/admin/keys/zz%2F", status=404)
    assert admin(served, "GET", "/admin/keys/zz%2Fy")["name"] == "zz/y"
    assert admin(served, "GET", "/admin/keys/zz/")["name"] == "zz"
    assert admin(served, "PATCH", f"/admin/keys/{quote('a ?#%2F;é', safe='')}", {})["name"] == "a ?#%2F;é"
    xylem(served, "keys", "revoke", "yy/")
    xylem(served, "keys", "set", "yy/y", "--rpm", "5")
    xylem(served, "keys", "erase", "yy/y", "--yes", "--url", served.url, "--key", "sesame")
    assert "no slash" in xylem(served, "keys", "create", "x/y", code=2).stderr
    assert "'.'" in xylem(served, "tenants", "set", "..", code=2).stderr
    names = {key["name"] for key in admin(served, "GET", "/admin/keys")["data"]}
    assert {"zz", "zz/y"} <= names
    assert not {"zz/", "yy/", "yy/y", "x/y"} & names


def test_what_admins_do_is_in_the_audit_log_without_secrets(served: Stack) -> None:
    """Old endpoints as new ones, by the API and by command; those who may not and those who only look are not."""
    last = admin(served, "GET", "/admin/audit?order=desc&limit=1")["data"][0]["id"]
    key = made_key(served, "noted", models=["mock"])
    admin(served, "PATCH", f"/admin/pools/{POOL}/limits", {"max_queued": 1000})
    admin(served, "PATCH", "/admin/aliases", {"aliases": {"nice": {"primary": "nothing"}}}, status=400)
    admin(served, "POST", "/admin/clear_kv_blocks")
    admin(served, "DELETE", "/admin/prefixes/prefix_0", status=404)
    admin(served, "GET", "/admin/keys")
    admin(served, "DELETE", "/admin/keys/noted", key="wrong", status=403)
    xylem(served, "keys", "revoke", "noted")
    page = admin(served, "GET", f"/admin/audit?after={last}&limit=3")
    assert page["has_more"]
    entries = page["data"] + admin(served, "GET", f"/admin/audit?after={page['data'][-1]['id']}")["data"]
    assert [(e["action"], e["target"], e["outcome"]) for e in entries] == [
        ("POST /admin/keys", "noted", "ok"),
        ("PATCH /admin/pools/{pool}/limits", POOL, "ok"),
        ("PATCH /admin/aliases", "", "invalid_value"),
        ("POST /admin/clear_kv_blocks", "", "ok"),
        ("DELETE /admin/prefixes/{prefix}", "prefix_0", "prefix_not_found"),
        ("xylem keys revoke", "noted", "ok"),
    ]
    assert {e["who"] for e in entries[:-1]} == {"admin key"}
    assert entries[-1]["who"].startswith("command line: ")
    assert entries[0]["detail"] == {"tenant": "default", "models": ["mock"]}
    assert entries[1]["detail"] == {"max_queued": 1000}
    assert key not in json.dumps(entries)
    assert "PATCH /admin/aliases" in xylem(served, "tenants", "audit").stdout


def test_a_token_of_the_issuer_serves_as_a_key(served: Stack, issuer: Issuer) -> None:
    """Each algorithm's token serves; its claims say the tenant and the models."""
    issuer.add("elliptic", "ES256")
    issuer.add("edwards", "EdDSA")
    issuer.add("pss", "PS256")
    for kid in ("one", "elliptic", "edwards", "pss"):
        wait_until(lambda kid=kid: chat(served, issuer.token(kid), max_tokens=1).status_code == 200, kid, WITHIN_S)
    token = issuer.token(scope={"models": "small other"})
    assert chat(served, token, max_tokens=1).status_code == 404
    assert chat(served, token, model="small", max_tokens=1).status_code == 200
    assert chat(served, issuer.token(scope=None), max_tokens=1).status_code == 404, "it names no models"


def test_what_one_token_has_made_is_there_for_the_next_of_the_same_person_alone(served: Stack, issuer: Issuer) -> None:
    """The owner is issuer, subject and tenant."""
    first, again, other = issuer.token(jti="1"), issuer.token(jti="2"), issuer.token(sub="bob")
    chat_id = chat(served, first, store=True, max_tokens=2).json()["id"]

    def found(token: str) -> int:
        url = f"{served.url}/v1/chat/completions/{chat_id}"
        return httpx.get(url, headers={"authorization": f"Bearer {token}"}).status_code

    assert [found(again), found(other)] == [200, 404]


def test_what_tokens_have_made_is_erased_with_their_tenant(served: Stack, issuer: Issuer) -> None:
    """No list has these people: the API notes each when it comes."""
    admin(served, "PUT", "/admin/tenants/fleeting", {})
    dora = {"authorization": f"Bearer {issuer.token(sub='dora', tenant='fleeting')}"}

    def uploaded() -> str | None:
        file = {"file": ("a.jsonl", b"{}\n")}
        answer = httpx.post(f"{served.url}/v1/files", data={"purpose": "batch"}, files=file, headers=dora, timeout=20)
        return answer.json()["id"] if answer.status_code == 200 else None

    file = wait_until(uploaded, "the tenant is known", WITHIN_S)
    erasure = admin(served, "POST", "/admin/tenants/fleeting/erase", {"wait_s": 60})
    assert (erasure["status"], erasure["removed"]["files"]) == ("done", 1)
    assert served.redis.exists(f"{served.deployment}:file:{file}") == 0


def test_who_moves_to_another_tenant_leaves_what_was_made_in_the_first_one(served: Stack, issuer: Issuer) -> None:
    """Each tenant is erased with its own; and again, when the same person has made something new in it."""
    file = {"file": ("a.jsonl", b"{}\n")}
    for tenant in ("old-team", "new-team"):
        admin(served, "PUT", f"/admin/tenants/{tenant}", {})

    def uploaded(tenant: str) -> str | None:
        token = {"authorization": f"Bearer {issuer.token(sub='eve', tenant=tenant)}"}
        answer = httpx.post(f"{served.url}/v1/files", data={"purpose": "batch"}, files=file, headers=token, timeout=20)
        return answer.json()["id"] if answer.status_code == 200 else None

    def erased(tenant: str) -> int:
        erasure = admin(served, "POST", f"/admin/tenants/{tenant}/erase", {"wait_s": 60})
        assert erasure["status"] == "done"
        return erasure["removed"].get("files", 0)

    first, second = (wait_until(lambda t=t: uploaded(t), "it is known", WITHIN_S) for t in ("old-team", "new-team"))
    assert erased("new-team") == 1
    assert served.redis.exists(*(f"{served.deployment}:file:{one}" for one in (first, second))) == 1
    assert erased("old-team") == 1
    admin(served, "PUT", "/admin/tenants/new-team", {})
    wait_until(lambda: uploaded("new-team"), "it is known again", WITHIN_S)
    assert erased("new-team") == 1


def test_a_token_that_is_not_good_is_refused_and_told_why(served: Stack, issuer: Issuer) -> None:
    """401 with the reason; 403 for a tenant that doesn't exist, which isn't made."""
    stranger = Issuer()
    try:
        foreign = stranger.add("one")
    finally:
        stranger.close()

    def unsigned(**header: Any) -> str:
        parts = [{"alg": "none", "typ": "JWT", **header}, {"iss": issuer.url, "aud": AUDIENCE, "sub": "alice"}]
        segments = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
        return ".".join([*segments, ""])

    good = issuer.token()
    head, body, signature = good.split(".")
    for token, why in (
        (issuer.token(exp=1), "it has expired"),
        (issuer.token(aud="another"), "it is not for"),
        (issuer.token(iss="https://other.example"), "it is not from"),
        (issuer.token(exp=None), "it has no 'exp'"),
        (issuer.token(sub=None), "it has no 'sub'"),
        (issuer.token(aud=None), "aud"),
        (issuer.token(key=foreign), "its signature is wrong"),
        (f"{head}.{body}x.{signature}", "not valid"),
        (f"{head}.{body[:-4]}.{signature}", "not valid"),
        (issuer.token("nobody's", key=foreign), "no such key"),
        (unsigned(kid="one"), "its algorithm 'none'"),
        (issuer.token(key="x" * 64, algorithm="HS256"), "its algorithm 'HS256'"),
        (issuer.token(algorithm="PS256"), "its key is not for PS256"),
        ("eyJ.x.y", "can't be read"),
    ):
        answer = chat(served, token)
        assert why in refusal(answer, 401)["message"], token
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for claims, why in (({"tenant": "nowhere"}, "nowhere"), ({"tenant": None}, "no claim 'tenant'")):
        assert why in refusal(chat(served, issuer.token(**claims)), 403)["message"]
    admin(served, "GET", "/admin/tenants/nowhere", status=404)
    assert chat(served, good, max_tokens=1).status_code == 200


def test_a_new_key_of_the_issuer_is_fetched_and_an_old_ones_tokens_are_refused(served: Stack, issuer: Issuer) -> None:
    """No restart is needed, and no fetch for each unknown key."""
    old = issuer.token()
    assert chat(served, old, max_tokens=1).status_code == 200
    old_key = issuer.keys.pop("one")
    issuer.add("two")
    try:
        wait_until(lambda: chat(served, issuer.token("two"), max_tokens=1).status_code == 200, "rotated", WITHIN_S)
        assert "no such key" in refusal(chat(served, old), 401)["message"]
        before = issuer.fetched
        for number in range(30):
            assert chat(served, issuer.token(f"unknown-{number}", key=old_key[1])).status_code == 401
        assert issuer.fetched - before <= 3
    finally:
        issuer.keys["one"] = old_key
    wait_until(lambda: chat(served, old, max_tokens=1).status_code == 200, "it is known again", WITHIN_S)


def test_a_token_with_the_claim_is_an_admins(served: Stack, issuer: Issuer) -> None:
    """The audit notes its subject; a token without the claim is refused."""
    boss = issuer.token(sub="carol", groups=["people", "operators"])
    admin(served, "PUT", "/admin/tenants/hers", {}, key=boss)
    assert admin(served, "GET", "/admin/audit?order=desc&limit=1")["data"][0]["who"] == "oidc: carol"
    admin(served, "GET", "/admin/tenants", key=issuer.token(groups=["people"]), status=403)
    admin(served, "GET", "/admin/tenants", key=issuer.token(exp=1, groups=["operators"]), status=401)


def test_while_the_issuer_is_away_what_was_known_holds(served: Stack, issuer: Issuer) -> None:
    """Tokens that were seen, and new ones of known keys. A new key is not known."""
    token = issuer.token()
    assert chat(served, token, max_tokens=1).status_code == 200
    original = issuer.shown
    issuer.shown = lambda _path: None  # type: ignore[method-assign]
    try:
        key = issuer.add("unseen")
        assert chat(served, issuer.token("unseen", key=key)).status_code == 401
        assert chat(served, token, max_tokens=1).status_code == 200
        assert chat(served, issuer.token(jti="new"), max_tokens=1).status_code == 200
    finally:
        issuer.shown = original  # type: ignore[method-assign]
        del issuer.keys["unseen"]
