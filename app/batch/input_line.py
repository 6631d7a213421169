"""Reads one line of a batch's input. Pure."""

from collections.abc import Container
from typing import Any

from xxhash import xxh3_64_digest

from app import json_bytes
from app.batch.records import BatchLine, Problem
from app.endpoints import CHAT, IMAGES, ROWS

ENDPOINTS = tuple(row.path for row in ROWS if row.is_batched)
MAX_LINES = 50_000
_MAX_ID = 512  # characters
_CHUNK = 512  # bytes of a prompt that are hashed together
_MOST_CHUNKS = 64
# The fields of a body that make the prompt, in the prompt's order.
_PROMPT = ("model", "instructions", "system", "messages", "prompt", "input")
# Parameters that a batch can't have, and why.
_REFUSED = {
    "stream": "Answers of a batch can't be streamed.",
    "timeout": "A line has the time of its batch, the 'completion_window'.",
}
_REFUSED_OF_CHATS = _REFUSED | {"store": "Answers of a batch are in its output file, and stored nowhere else."}


class Broken(Exception):
    """A line that can't be read; the others can."""

    def __init__(self, problem: Problem, custom_id: str | None = None) -> None:
        self.problem, self.custom_id = problem, custom_id
        super().__init__(problem.message)


def read_line(raw: bytes, number: int, endpoint: str, ids: Container[str]) -> tuple[BatchLine, dict[str, Any]]:
    """The line, and its decoded body. `ids`: the custom_ids of earlier lines. Raises: Broken."""

    def broken(code: str, message: str, param: str | None = None) -> Broken:
        return Broken(Problem(code, message, number, param), known_id)

    known_id: str | None = None
    try:
        line = json_bytes.loads(raw)
    except ValueError as exc:
        raise broken("invalid_json_line", f"This line is not parseable as valid JSON: {exc}.") from None
    if not isinstance(line, dict):
        raise broken("invalid_json_line", "This line is not a JSON object.")
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id or len(custom_id) > _MAX_ID:
        raise broken(
            "missing_required_parameter" if custom_id is None else "invalid_value",
            f"'custom_id' has to be a string of 1 to {_MAX_ID} characters.",
            "custom_id",
        )
    known_id = custom_id
    if custom_id in ids:
        raise broken("duplicate_custom_id", f"An earlier line has the custom_id '{custom_id}', too.", "custom_id")
    if line.get("method") != "POST":
        raise broken("invalid_method", "'method' has to be 'POST'.", "method")
    if line.get("url") != endpoint:
        raise broken("invalid_url", f"'url' has to be the batch's endpoint, '{endpoint}'.", "url")
    body = line.get("body")
    if not isinstance(body, dict):
        raise broken("missing_required_parameter", "'body' has to be a JSON object.", "body")
    if unknown := line.keys() - {"custom_id", "method", "url", "body"}:
        raise broken("unknown_parameter", f"'{min(unknown)}' is not a parameter of a line.", min(unknown))
    if refusal := _refused(endpoint, body):
        raise broken("invalid_value", refusal[1], f"body.{refusal[0]}")
    try:
        return BatchLine(number, custom_id, json_bytes.dumps(body)), body
    except TypeError:  # orjson reads 1,024 levels, and writes 254
        raise broken("invalid_json_line", "'body' is nested too deep.", "body") from None


def _refused(endpoint: str, body: dict[str, Any]) -> tuple[str, str] | None:
    """A parameter that it can't have in a batch, and why."""
    if endpoint == IMAGES.path and body.get("response_format") == "url":
        return "response_format", "Pictures of a batch are in its output file, as b64_json."
    refusals = _REFUSED_OF_CHATS if endpoint == CHAT.path else _REFUSED
    return next(((name, why) for name, why in refusals.items() if body.get(name)), None)


def prefix_key(body: dict[str, Any]) -> bytes:
    """A sort key that brings prompts with a common beginning together, the closer the longer it is.

    Chained hashes of the prompt's chunks, as for KV blocks: 8 bytes for each 512 bytes, of the first 32 KiB.
    """
    text = json_bytes.dumps([body.get(name) for name in _PROMPT])[: _CHUNK * _MOST_CHUNKS]
    key = b""
    for start in range(0, len(text) - _CHUNK + 1, _CHUNK):
        key += xxh3_64_digest(key[-8:] + text[start : start + _CHUNK])
    return key
