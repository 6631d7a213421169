"""One line of an input file: what is wrong with it, and which ones are put side by side."""

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from app.batch.input_line import Broken, prefix_key, read_line

CHAT = "/v1/chat/completions"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"x": value}
    return value


def line(**changes: Any) -> bytes:
    good = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": []}}
    return json.dumps({k: v for k, v in (good | changes).items() if v is not ...}).encode()


def test_a_good_line_is_its_body_under_its_id_and_number() -> None:
    read, body = read_line(line(), 7, CHAT, set())
    assert (read.number, read.custom_id) == (7, "a")
    assert json.loads(read.body) == body == {"model": "m", "messages": []}


@pytest.mark.parametrize(
    ("raw", "code", "param", "custom_id"),
    [
        (b"{", "invalid_json_line", None, None),
        (b"[1]", "invalid_json_line", None, None),
        (b"\xff{}", "invalid_json_line", None, None),
        (line(custom_id=...), "missing_required_parameter", "custom_id", None),
        (line(custom_id=3), "invalid_value", "custom_id", None),
        (line(custom_id="x" * 513), "invalid_value", "custom_id", None),
        (line(custom_id="known"), "duplicate_custom_id", "custom_id", "known"),
        (line(method="GET"), "invalid_method", "method", "a"),
        (line(url="/v1/embeddings"), "invalid_url", "url", "a"),
        (line(body="x"), "missing_required_parameter", "body", "a"),
        (line(extra=1), "unknown_parameter", "extra", "a"),
        (line(body={"model": "m", "stream": True}), "invalid_value", "body.stream", "a"),
        (line(body={"model": "m", "timeout": 60}), "invalid_value", "body.timeout", "a"),
        (line(body={"model": "m", "store": True}), "invalid_value", "body.store", "a"),
        (line(body=nested(300)), "invalid_json_line", "body", "a"),
    ],
)  # fmt: skip
def test_a_broken_line_says_why_and_which_one_it_is(
    raw: bytes, code: str, param: str | None, custom_id: str | None
) -> None:
    with pytest.raises(Broken) as exc:
        read_line(raw, 12, CHAT, {"known"})
    assert (exc.value.problem.code, exc.value.problem.param, exc.value.problem.line) == (code, param, 12)
    assert exc.value.custom_id == custom_id


def chat(*texts: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]}


def test_sorting_by_the_key_brings_prompts_together_that_begin_alike() -> None:
    systems = [f"You are number {i}. " * 200 for i in range(5)]
    bodies = [chat(system, f"question {j}") for j in range(20) for system in systems]
    random.Random(1).shuffle(bodies)
    sorted_bodies = sorted(bodies, key=prefix_key)
    groups = [body["messages"][0]["content"] for body in sorted_bodies]
    changes = sum(a != b for a, b in pairwise(groups))
    assert changes == len(systems) - 1


def test_a_longer_common_beginning_is_closer() -> None:
    system_text, document = "rules " * 300, "document " * 300
    one, same_document = chat(system_text, document, "a"), chat(system_text, document, "b")
    other_document = chat(system_text, "another " * 300, "a")

    def common(a: dict[str, Any], b: dict[str, Any]) -> int:
        pairs = zip(prefix_key(a), prefix_key(b), strict=False)
        return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(prefix_key(a)), len(prefix_key(b))))

    assert common(one, same_document) > common(one, other_document) > 0


def test_the_key_of_a_huge_prompt_is_small() -> None:
    assert len(prefix_key(chat("x" * 10_000_000))) == 64 * 8
