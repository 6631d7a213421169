"""A long prompt's answer, and why it came from where it did."""

import json
from typing import Any

import httpx

from tests.stack import Stack


def asked(s: Stack, model: str, about: str) -> tuple[str, dict[str, Any], int]:
    """The answer about a text of some hundred tokens, its route, and the cached tokens."""
    body = {
        "model": model, "prompt": f"{about} " + "the boat was late and the sea was grey " * 45,
        "max_tokens": 8, "temperature": 0,
    }  # fmt: skip
    answer = httpx.post(f"{s.url}/v1/completions", json=body, headers={"x-xylem-explain": "1"}, timeout=60)
    completion = answer.json()
    assert answer.status_code == 200, completion
    cached_tokens = (completion["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return completion["choices"][0]["text"], json.loads(answer.headers["x-xylem-route"])[0], cached_tokens
