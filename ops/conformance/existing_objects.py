"""A pytest plugin for the clients' own suites: what their tests name exists when they ask for it.

They name objects of the documentation, such as `conv_123`. Each is made anew for the request that names it, and its id
takes the place of that name.
"""

import io
import json
import os
import re
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import httpx
import pytest

_URL = f"{os.environ['TEST_API_BASE_URL'].removesuffix('/v1')}/v1"
_CHAT: dict[str, Any] = {"model": "mock", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
_MESSAGE = {"role": "user", "content": "Hello"}
_LONG = _CHAT | {"max_tokens": 2000, "ignore_eos": True}  # so that what it is part of can still be cancelled
_LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": _LONG}


def _post(path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(_URL + path, json=body, trust_env=False, timeout=60)
    answer.raise_for_status()
    return answer.json()


def _file() -> str:
    upload = {"file": ("lines.jsonl", io.BytesIO(json.dumps(_LINE).encode()))}
    answer = httpx.post(f"{_URL}/files", files=upload, data={"purpose": "batch"}, trust_env=False, timeout=60)
    return str(answer.raise_for_status().json()["id"])


def _batch() -> str:
    fields = {"input_file_id": _file(), "endpoint": _LINE["url"], "completion_window": "24h"}
    return str(_post("/batches", fields)["id"])


def _message_batch(*, over: bool) -> str:
    chat = _CHAT if over else _LONG
    batch = _post("/messages/batches", {"requests": [{"custom_id": "1", "params": chat}]})
    end = time.monotonic() + 60
    while over and batch["processing_status"] != "ended":
        assert time.monotonic() < end, batch
        time.sleep(0.05)
        batch = httpx.get(f"{_URL}/messages/batches/{batch['id']}", trust_env=False, timeout=60).json()
    return str(batch["id"])


def _response() -> str:
    return str(_post("/responses", {"model": "mock", "input": "Hello", "background": True})["id"])


def _conversation() -> tuple[str, str]:
    conversation = _post("/conversations", {"items": [{"type": "message", **_MESSAGE}]})["id"]
    items = (
        httpx.get(f"{_URL}/conversations/{conversation}/items", trust_env=False, timeout=60).raise_for_status().json()
    )
    return str(conversation), str(items["data"][0]["id"])


# Names, and what makes an id for each, by the request's method: only what has ended can be deleted.
_MADE: dict[tuple[str, ...], Callable[[str], tuple[str, ...]]] = {
    ("conv_123", "msg_abc"): lambda _: _conversation(),
    ("resp_677efb5139a88190b512bc3fef8e535d",): lambda _: (_response(),),
    ("response_id",): lambda _: (_response(),),
    ("completion_id",): lambda _: (str(_post("/chat/completions", _CHAT | {"store": True})["id"]),),
    ("input_file_id",): lambda _: (_file(),),
    ("file_id",): lambda _: (_file(),),
    ("message_batch_id",): lambda method: (_message_batch(over=method == "delete"),),
    ("batch_id",): lambda _: (_batch(),),
}


def _named(options: Any) -> None:
    """Puts ids in the place of names in a client's request."""
    for names, make in _MADE.items():
        in_path = re.search(rf"/{names[0]}\b", options.url)
        body = options.json_data if isinstance(options.json_data, dict) else {}
        fields = [field for field, value in body.items() if value == names[0]]
        if not in_path and not fields:
            continue
        for name, id_ in zip(names, make(options.method), strict=True):
            options.url = re.sub(rf"/{name}\b", f"/{id_}", options.url)
            for field in fields:
                body[field] = id_
        return


@pytest.fixture(autouse=True)
def objects_exist(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if {"respx_mock", "respx2_mock"} & {*request.fixturenames}:  # it asks no server
        return
    client = import_module(f"{os.environ['SUITE']}._base_client").BaseClient
    build = client._build_request  # noqa: SLF001 (before the URL is made of it)

    def built(self: Any, options: Any, **rest: Any) -> Any:
        _named(options)
        return build(self, options, **rest)

    monkeypatch.setattr(client, "_build_request", built)
