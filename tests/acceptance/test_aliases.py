"""Aliases over HTTP: a fallback model, shares of the requests, and changes at run time."""

from importlib.metadata import version
from typing import Any

import httpx
import openai
import pytest

from tests.serving import served_by
from tests.stack import Stack, mock_pool, wait_until

ALIASES = {"chat": {"primary": "big", "fallback": "small"}}
# One request at a time, and nobody waits.
BIG = mock_pool(model="big", max_running=1, step_ms=50.0) | {"busy": {"max_queued": 0, "max_held": 0}}


served = served_by(
    {"pool-big": BIG, "pool-small": mock_pool(model="small"), "pool-new": mock_pool(model="new")},
    {"small": "pool-small", "new": "pool-new"}, more={"aliases": ALIASES}, XYLEM_ADMIN_KEY="admin",
)  # fmt: skip


def asked(client: openai.OpenAI, model: str = "chat", text: str = "Hello", **options: Any) -> str:
    """The model that answered."""
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, **{"max_tokens": 2, **options}).model  # type: ignore[arg-type]


def changed(served: Stack, **aliases: Any) -> httpx.Response:
    headers = {"Authorization": "Bearer admin"}
    return httpx.patch(f"{served.url}/admin/aliases", json={"aliases": aliases}, headers=headers, timeout=10)


def test_models_lists_aliases(client: openai.OpenAI) -> None:
    cards = {card.id: card.model_dump() for card in client.models.list()}
    assert set(cards) == {"big", "small", "new", "chat"}
    assert cards["chat"]["alias"] == {"primary": "big", "fallback": "small", "split": {}}
    assert client.models.retrieve("chat").model_dump()["alias"]["primary"] == "big"


def test_a_model_shows_the_engines_that_serve_it(client: openai.OpenAI) -> None:
    pools = client.models.retrieve("small").model_dump()["pools"]
    assert [(p["pool"], p["engine"], p["workers"], p["role"]) for p in pools] == [("pool-small", "mock", 1, "both")]
    assert pools[0]["versions"] == [version("xylem-serve")]
    assert pools[0]["capabilities"]["kv_events"]
    assert client.models.retrieve("chat").model_dump()["pools"][0]["workers"] == 0  # its primary model's


def test_the_fallback_answers_while_the_primary_model_has_no_worker_or_is_full(
    served: Stack, client: openai.OpenAI
) -> None:
    """Streamed and whole, at each endpoint; a request that names the model itself is refused."""
    assert asked(client) == "small"
    assert client.responses.create(model="chat", input="Hi", max_output_tokens=2).model == "small"
    with pytest.raises(openai.InternalServerError):
        asked(client, "big")
    worker = served.worker("pool-big", "big")
    served.wait_ready(model="big")
    wait_until(lambda: asked(client) == "big", "the primary model answers")
    long = wait_until(lambda: _taken(client), "its only seat is taken")
    assert asked(client) == "small"
    messages = [{"role": "user", "content": "Hello"}]
    chunks = client.chat.completions.create(model="chat", messages=messages, max_tokens=2, stream=True)  # type: ignore[call-overload]
    assert {chunk.model for chunk in chunks} == {"small"}
    with pytest.raises(openai.RateLimitError):
        asked(client, "big")
    long.close()
    wait_until(lambda: asked(client) == "big", "its seat is free again")
    worker.kill()
    worker.wait()
    served.wait_ready(0, model="big")
    wait_until(lambda: _answers(client) == "small", "its worker's death is noticed")


def _answers(client: openai.OpenAI) -> str:
    """The model that answers; empty if none does soon.

    A request that was placed before the worker's death waits for another worker.
    """
    try:
        return asked(client, timeout=2)
    except openai.APITimeoutError:
        return ""


def _taken(client: openai.OpenAI) -> Any:
    """A long answer of the primary model; None while the seat of the one before is not free yet."""
    messages = [{"role": "user", "content": "Long"}]
    try:
        return client.chat.completions.create(model="big", messages=messages, max_tokens=500, stream=True)  # type: ignore[call-overload]
    except openai.RateLimitError:
        return None


def test_a_share_is_changed_at_run_time_and_a_session_keeps_its_version(served: Stack, client: openai.OpenAI) -> None:
    answer = changed(served, fast={"primary": "small", "split": {"new": 0.5}})
    assert answer.status_code == 200
    assert set(answer.json()["aliases"]) == {"chat", "fast"}
    sessions = {f"s{number}": asked(client, "fast", prompt_cache_key=f"s{number}") for number in range(12)}
    assert set(sessions.values()) == {"small", "new"}
    for session, model in sessions.items():
        assert asked(client, "fast", "More", prompt_cache_key=session) == model
    assert {asked(client, "fast") for _ in range(24)} == {"small", "new"}
    assert changed(served, fast={"primary": "new"}).status_code == 200
    assert {asked(client, "fast") for _ in range(4)} == {"new"}
    assert set(changed(served, fast=None).json()["aliases"]) == {"chat"}
    with pytest.raises(openai.NotFoundError):
        asked(client, "fast")


def test_a_repeated_request_gets_the_answer_of_the_first_one(served: Stack, client: openai.OpenAI) -> None:
    changed(served, fast={"primary": "small", "split": {"new": 0.5}})
    for number in range(6):
        options: dict[str, Any] = {"extra_headers": {"Idempotency-Key": f"k{number}"}, "text": f"Hello {number}"}
        assert asked(client, "fast", **options) == asked(client, "fast", **options)


def test_an_answer_is_joined_and_resumed_after_its_alias_has_changed(served: Stack) -> None:
    """Each endpoint does so; it is the answer of the model that began it."""
    chat = {"model": "moved", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    bodies = {"/chat/completions": chat, "/messages": chat, "/completions": {"model": "moved", "prompt": "Hello"}}
    bodies |= {"/responses": {"model": "moved", "input": "Hello", "max_output_tokens": 4}}

    def answers() -> dict[str, httpx.Response]:
        whole = {path: (body, path) for path, body in bodies.items()}
        streams = {f"{path} streamed": (body | {"stream": True}, path) for path, body in bodies.items()}
        return {
            name: httpx.post(f"{served.url}/v1{path}", json=body, headers={"Idempotency-Key": name}, timeout=30)
            for name, (body, path) in (whole | streams).items()
        }

    assert changed(served, moved={"primary": "small"}).status_code == 200
    first = answers()
    assert {name: answer.status_code for name, answer in first.items()} == dict.fromkeys(first, 200)
    assert changed(served, moved={"primary": "new"}).status_code == 200
    again = answers()
    assert {name: answer.text for name, answer in again.items()} == {n: answer.text for n, answer in first.items()}
    stream = first["/chat/completions streamed"].text
    events = [event for event in stream.split("\n\n") if event.startswith("id: ")]
    last = {"Last-Event-ID": events[0].partition("\n")[0].removeprefix("id: ")}
    rest = httpx.post(f"{served.url}/v1/chat/completions", json=chat | {"stream": True}, headers=last, timeout=30)
    assert rest.text == stream[stream.index(events[1]) :]
    same = {"Idempotency-Key": "/chat/completions"}
    other = httpx.post(f"{served.url}/v1/chat/completions", json=chat | {"max_tokens": 3}, headers=same, timeout=30)
    assert other.status_code == 400


def test_a_wrong_alias_or_no_admin_key_is_refused(served: Stack) -> None:
    answer = changed(served, x={"primary": "nope"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "aliases.x")
    assert changed(served, big={"primary": "small"}).status_code == 400
    assert httpx.patch(f"{served.url}/admin/aliases", json={"aliases": {}}).status_code == 403
    assert httpx.get(f"{served.url}/admin/aliases").status_code == 403
