"""Batches as a client makes them, and what became of them."""

import io
import json
from typing import Any

import openai
from openai import OpenAI
from openai.types import Batch

from tests.stack import wait_until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def submitted(c: OpenAI, lines: list[Any], url: Any = CHAT, **asked: Any) -> Batch:
    """A batch of these lines: dicts, or what stands there instead of one."""
    raw = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    file = c.files.create(file=("in.jsonl", io.BytesIO(raw.encode())), purpose="batch")
    return c.batches.create(input_file_id=file.id, endpoint=url, **{"completion_window": "24h"} | asked)


def ended(c: OpenAI, batch: Batch, timeout_s: float = 90) -> Any:
    """The batch at its end; its replica may be away meanwhile."""

    def over() -> Batch | None:
        try:
            latest = c.batches.retrieve(batch.id)
        except (openai.APIConnectionError, openai.InternalServerError):
            return None
        return latest if latest.status in ENDED else None

    return wait_until(over, f"{batch.id} has ended", timeout_s, 0.2)


def lines_of(c: OpenAI, file: str | None) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in c.files.content(file).text.splitlines()] if file else []


def results(c: OpenAI, batch: Batch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Answers and errors."""
    return lines_of(c, batch.output_file_id), lines_of(c, batch.error_file_id)


def answered(c: OpenAI, bodies: list[dict[str, Any]], url: Any = CHAT, timeout_s: float = 90) -> tuple[Any, list[Any]]:
    """A batch of these bodies, completed, and those of its answers, in their order."""
    lines = [line(str(i), url, **body) for i, body in enumerate(bodies)]
    batch = ended(c, submitted(c, lines, url), timeout_s)
    assert batch.status == "completed", batch
    answers = sorted(lines_of(c, batch.output_file_id), key=lambda one: int(one["custom_id"]))
    return batch, [one["response"]["body"] for one in answers]
