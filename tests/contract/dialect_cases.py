"""Dialects on what each engine makes: `test_engine_contract.py` has loaded the engines and runs this.

A grammar has the engine write texts of `dialect_texts.json`, token by token; its pieces are read as an answer's are.
"""

import asyncio
import json
from typing import Any

from app.messages.job import Grammar
from tests.contract.subject import Subject
from tests.unit.test_dialect_texts import TEXTS, read, taken_apart

_SHORT = 160  # characters
# Of each dialect, the shortest that has a call, and the shortest with reasoning, which may be the same.
_CASES = list(
    {
        (case["dialect"], case["title"]): case
        for case in {
            (case["dialect"], part): case
            for case in sorted(TEXTS, key=lambda case: -len(case["text"]))
            for part in ("calls", "reasoning")
            if case.get(part) and len(case["text"]) <= _SHORT
        }.values()
    }.values()
)


async def test_calls_and_reasoning_are_read_from_an_engines_own_steps(subject: Subject) -> None:
    """All engines give what the text alone gives, wherever their tokens cut it."""
    assert len({case["dialect"] for case in _CASES}) >= 30
    assert sum("reasoning" in case for case in _CASES) >= 10

    async def pieces(case: dict[str, Any]) -> list[str]:
        sampling = {"max_tokens": len(case["text"].encode()), "special_tokens": True}
        answer = await subject.answer("Write: ", grammar=Grammar("choice", json.dumps([case["text"]])), **sampling)
        assert answer.text == case["text"]
        return [output.text for output in answer.outputs]

    for case, parts in zip(_CASES, await asyncio.gather(*map(pieces, _CASES)), strict=True):
        assert len(parts) > 2, case["title"]
        reasoning, content, calls, is_broken = taken_apart(case, parts)
        assert (reasoning, content) == (case.get("reasoning", ""), case.get("content", "")), case["title"]
        assert [[name, read(arguments)] for name, arguments in calls] == case.get("calls", []), case["title"]
        assert is_broken == case.get("broken", False), case["title"]
