"""The beginning and end of each stage of an answered request, as the API tells them."""

import time
from typing import Any

import httpx

from ops.bench.processes import Unavailable

_SOON_S = 5.0  # an answer's last byte may be out before its timeline is complete


def timeline(client: httpx.Client, request: str) -> dict[str, Any]:
    """The timeline of the request's only prompt. Raises: Unavailable."""
    until = time.monotonic() + _SOON_S
    while True:
        response = client.get(f"/requests/{request}")
        if response.is_success and "ended_s" in (prompt := response.json()["prompts"][0]):
            return dict(prompt)
        if time.monotonic() > until:
            raise Unavailable(f"/requests/{request}: {response.text[:200]}")
        time.sleep(0.01)
