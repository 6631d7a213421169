"""When each stage of an answered request began and ended, as the API tells it."""

import time
from typing import Any

import httpx

from ops.bench.processes import Unavailable

_SOON_S = 5.0  # an answer's last byte may be out before its timeline is complete


def timeline(client: httpx.Client, request: str) -> dict[str, Any]:
    """Of the request's only prompt. Raises: Unavailable."""
    until = time.monotonic() + _SOON_S
    while True:
        told = client.get(f"/requests/{request}")
        if told.is_success and "ended_s" in (found := told.json()["prompts"][0]):
            return dict(found)
        if time.monotonic() > until:
            raise Unavailable(f"/requests/{request}: {told.text[:200]}")
        time.sleep(0.01)
