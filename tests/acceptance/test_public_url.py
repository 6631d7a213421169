"""Addresses that the API gives to clients behind a proxy with a path: `XYLEM_PUBLIC_URL`."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.proxies import NAMES, proxy
from tests.serving import served_by
from tests.stack import Stack, free_port

PORT, ROOT_PATH = free_port(), "/llm"
PUBLIC = f"http://127.0.0.1:{PORT}{ROOT_PATH}"
served = served_by(
    {"image-pool": {"model": "painter", "engine": "mock", "task": "image", "painting": {"size": "64x64", "steps": 2}}},
    XYLEM_ROOT_PATH=ROOT_PATH, XYLEM_TRUSTED_PROXIES="127.0.0.0/8", XYLEM_PUBLIC_URL=f"{PUBLIC}/",
    XYLEM_ALLOWED_HOSTS="inner.example", XYLEM_MEDIA_STORE="{path}/media",
)  # fmt: skip


def painted(url: str, kind: str, host: str | None = None) -> str:
    """A picture, as base64 or by its URL."""
    body: dict[str, Any] = {"model": "painter", "prompt": "a cat", "seed": 1, "response_format": kind}
    headers = {} if host is None else {"host": host}
    answer = httpx.post(f"{url}/v1/images/generations", json=body, headers=headers, timeout=60)
    assert answer.is_success, answer.text
    return str(answer.json()["data"][0][kind])


@pytest.mark.parametrize("name", NAMES)
def test_a_pictures_address_is_one_that_clients_of_the_proxy_reach(served: Stack, name: str, tmp_path: Path) -> None:
    """The host that the API itself is asked for changes nothing."""
    with proxy(name, tmp_path, served.port, PORT) as front:
        file = b64decode(painted(front + ROOT_PATH, "b64_json"))
        for address in (
            painted(front + ROOT_PATH, "url"),
            painted(front + ROOT_PATH, "url", host="inner.example"),
            painted(served.url, "url"),
        ):
            assert address.startswith(f"{PUBLIC}/v1/images/file-")
            assert httpx.get(address).content == file
