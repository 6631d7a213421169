"""Tests that no key sees what another has made.

Each endpoint whose path has an id is asked, and each list is looked at.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.api.api_keys import wants_admin_key
from app.tenants.records import decode_tenant
from tests.belongings import ADMIN, PROMPT, Holder, keyed
from tests.stack import Stack, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")  # OpenAI's own service ends

# Paths with a name in them that is everybody's.
SHARED = re.compile(r"/v1/models/|/v2/models/")
# Bodies without which an endpoint refuses before it looks for the id.
BODIES: dict[tuple[str, str], Any] = {
    ("post", "/v1/chat/completions/{chat}"): {"metadata": {"a": "b"}},
    ("post", "/v1/conversations/{conversation}"): {"metadata": {"a": "b"}},
    ("post", "/v1/conversations/{conversation}/items"): {
        "items": [{"type": "message", "role": "user", "content": "hi"}]
    },
}
LISTS = ["/v1/files", "/v1/batches", "/v1/chat/completions", "/v1/videos", "/v1/messages/batches"]


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with keyed(valkey_url, tmp_path_factory.mktemp("isolation")) as s:
        yield s


@pytest.fixture(scope="module")
def alice(served: Stack) -> Holder:
    return Holder(served, "alice", "north")


@pytest.fixture(scope="module", params=["another tenant", "another key of the tenant"])
def bob(served: Stack, alice: Holder, request: pytest.FixtureRequest) -> Holder:
    other = request.param == "another tenant"
    return Holder(served, f"bob-{int(other)}", "south" if other else alice.tenant)


@pytest.fixture(scope="module")
def hers(alice: Holder) -> dict[str, str]:
    return alice.has_everything()


def endpoints(s: Stack) -> list[tuple[str, str]]:
    """Methods and paths of the document that have an id in the path, but for those of administrators."""
    paths = httpx.get(f"{s.url}/openapi.json", timeout=60).json()["paths"]
    return [
        (method, path)
        for path, methods in paths.items()
        for method in sorted(methods, key=["get", "post", "delete", "patch", "put"].index)
        if "{" in path and not wants_admin_key(path) and not SHARED.match(path)
    ]


def test_an_id_of_another_key_is_not_found_whatever_is_asked(
    served: Stack, alice: Holder, bob: Holder, hers: dict[str, str]
) -> None:
    """Exactly as one that nobody has; and its owner is answered, so that the ids are right ones.

    An endpoint that comes later fails here until `Holder.has_everything` makes what its path names.
    """
    operations = endpoints(served)
    assert len(operations) > 20
    for method, path in operations:
        names = re.findall(r"{(\w+)}", path)
        assert set(names) <= hers.keys(), f"{path}: nothing is made that this test could ask for"
        url, body = path.format(**hers), BODIES.get((method, path))
        foreign_answer = bob.call(method.upper(), url, json=body)
        unknown = bob.call(method.upper(), path.format(**{n: hers[n][:-4] + "0000" for n in names}), json=body)
        assert foreign_answer.status_code == unknown.status_code == 404, (method, path, foreign_answer.text)
        error, other = (answer.json()["error"] for answer in (foreign_answer, unknown))
        assert (error.get("code"), error["type"]) == (other.get("code"), other["type"]), (method, path)
    for method, path in operations:
        if method == "get":
            assert alice.call("GET", path.format(**hers)).status_code == 200, path


def test_lists_show_ones_own_only(alice: Holder, bob: Holder, hers: dict[str, str]) -> None:
    for path in LISTS:
        assert bob.call("GET", path).json()["data"] == [], path
        assert alice.call("GET", path).json()["data"], path
    ids = set(hers.values())
    for path in LISTS:  # nor does an id of another's as a place to begin show what comes behind it
        name = "after_id" if path.startswith("/v1/messages") else "after"
        after = [bob.call("GET", path, params={name: id_}) for id_ in ids]
        assert all(answer.status_code != 200 or answer.json()["data"] == [] for answer in after), path


def test_ids_of_anothers_things_in_bodies_are_not_found(alice: Holder, bob: Holder, hers: dict[str, str]) -> None:
    """A batch of her file, a response in her conversation or behind hers. Files in prompts: `test_media.py`."""
    ids = {"file": "input_file_id", "response": "previous_response_id", "conversation": "conversation"}
    batch, ask = {"endpoint": "/v1/completions", "completion_window": "24h"}, {"model": "mock", "input": "hi"}
    for path, body, what in (
        ("/v1/batches", batch, "file"),
        ("/v1/responses", ask, "response"),
        ("/v1/responses", ask, "conversation"),
        ("/v1/responses/input_tokens", ask, "conversation"),
        ("/v1/responses/compact", ask, "response"),
    ):
        own_body, nobodys = (body | {ids[what]: id_} for id_ in (hers[what], hers[what][:-4] + "0000"))
        foreign_answer, unknown = bob.call("POST", path, json=own_body), bob.call("POST", path, json=nobodys)
        assert foreign_answer.status_code == unknown.status_code in (400, 404), (path, foreign_answer.text)
        assert foreign_answer.json()["error"]["code"] == unknown.json()["error"]["code"], path
        assert alice.call("POST", path, json=own_body).status_code == 200, path


def test_an_idempotency_key_or_an_events_id_of_another_gives_nothing(alice: Holder, bob: Holder) -> None:
    body = {"model": "mock", "prompt": "Tell me", "max_tokens": 6, "stream": True, "seed": 1}
    own = {"idempotency-key": "same"}
    first = alice.call("POST", "/v1/completions", json=body, headers=own)
    again = alice.call("POST", "/v1/completions", json=body, headers=own)
    other = bob.call("POST", "/v1/completions", json=body, headers=own)
    first_id, again_id, others = (answer.headers["x-xylem-kept"] for answer in (first, again, other))
    assert first_id == again_id != others
    (last, *_) = re.findall(r"^id: (\S+)$", first.text, re.MULTILINE)
    resume_headers = {"last-event-id": last}
    assert alice.call("POST", "/v1/completions", json=body, headers=resume_headers).status_code == 200
    foreign_answer = bob.call("POST", "/v1/completions", json=body, headers=resume_headers)
    assert (foreign_answer.status_code, foreign_answer.json()["error"]["code"]) == (404, "request_not_found")


def test_a_tenant_with_kv_of_its_own_shares_none_and_cannot_be_probed(served: Stack) -> None:
    """A client that knows the prompt and names a salt cannot probe it either; keys of one tenant share the KV."""
    carol, dave = Holder(served, "carol", "east"), Holder(served, "dave", "west")
    path = "/admin/tenants/east/isolation"
    answer = httpx.post(served.url + path, json={"isolated": True}, headers=ADMIN)
    assert (answer.status_code, answer.json()["isolated"]) == (200, True)
    prompt = f"It is isolated. {PROMPT}"

    def cached(holder: Holder, **more: Any) -> int:
        return int(holder.chat(prompt, **more).usage.prompt_tokens_details.cached_tokens)

    # From when on the salt is used: each with a prompt of its own.
    wait_until(lambda: served.redis.hget(f"{served.deployment}:tenants", "east"), "the tenant in Redis")
    dave.chat(prompt)
    wait_until(lambda: cached(dave) > 0, "dave's prompt in the cache")
    eve = Holder(served, "eve", "east")  # valid: so this replica has read keys and tenants since
    assert cached(carol) == 0
    wait_until(lambda: cached(carol) > 0, "carol's prompt in the cache")
    assert cached(eve) > 0
    frank = Holder(served, "frank", "west")
    other = f"It is isolated, too. {PROMPT}"
    carol.chat(other)
    for fields in ({}, {"extra_body": {"cache_salt": salt_of(served, "east")}}):
        assert frank.chat(other, **fields).usage.prompt_tokens_details.cached_tokens == 0


def salt_of(s: Stack, tenant: str) -> str:
    """The tenant's salt, which no client knows."""
    return decode_tenant(s.redis.hget(f"{s.deployment}:tenants", tenant)).salt
