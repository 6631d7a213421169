"""The share of the public corpus that the parser understands, and its CPU cost."""

import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

from app.dialects.names import find_dialect
from app.dialects.output_parser import OutputParser
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size

_TOKEN = re.compile(r" ?\w{1,6}|[^\w]")  # about as long as a model's
_PROSE, _CALL = 1500, 1500  # tokens
_SENTENCE = "The lighthouse keeper opened the old door, looked over the grey sea, and went down to the boat again. "


def conformance(_out_dir: Path, _size: Size, say: Say) -> dict[str, Any]:
    """The share of canitoolcall's cases parsed correctly, whole and cut in four ways. Raises: Unavailable."""
    try:
        from tests.corpus import FIXTURES, conforms, same_however_cut
    except ImportError as exc:
        raise Unavailable(f"canitoolcall is not installed: {exc}") from exc
    outcomes: dict[str, list[bool]] = {}
    for fixture in FIXTURES:
        say(f"conformance: {fixture.family}")
        outcomes.setdefault(fixture.family, []).append(conforms(fixture) and same_however_cut(fixture))
    shares = {family: sum(cases) / len(cases) for family, cases in outcomes.items()}
    return {
        "conformance": {family: (sum(cases), len(cases)) for family, cases in outcomes.items()},
        "conformance_pass": sum(map(sum, outcomes.values())) / sum(map(len, outcomes.values())),
        "conformance_family_min": min(shares.values()),
    }


def parser_cost(_out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """CPU of the parser alone, token by token: prose, and one long call, as Hermes and Qwen write them."""
    arguments = json.dumps({"text": _SENTENCE * 200})
    call = '<tool_call>\n{"name": "write", "arguments": ' + arguments + "}\n</tool_call>"
    kinds = {"prose": _TOKEN.findall(_SENTENCE * 200)[:_PROSE], "call": _TOKEN.findall(call)[:_CALL]}
    costs: dict[str, float] = {}
    for kind, tokens in kinds.items():
        say(f"the parser's cost: {kind}")
        costs[kind] = statistics.median(_us_per_token(tokens) for _ in range(size.of(100, 20, 2)))
    return {
        "parser_prose_us_per_token": costs["prose"],
        "parser_call_us_per_token": costs["call"],
        "parser_us_per_token": max(costs.values()),
    }


def _us_per_token(tokens: list[str]) -> float:
    dialect = find_dialect("hermes")
    assert dialect is not None
    parser = OutputParser(dialect, {"write": {"type": "object"}})
    began = time.thread_time()
    for token in tokens:
        parser.feed(token)
    parser.close()
    return 1e6 * (time.thread_time() - began) / len(tokens)
