"""The systems under test: two mock workers at the speed of an H100, with the work divided in three ways."""

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ops.bench.load import System, trace
from ops.bench.systems import fleet

PREFILL, DECODE = "prefill-pool-a", "decode-pool-a"
TOKENS_PER_S = 25_000.0  # of one worker's prefills: the mock's default
LONGEST = 16_384  # prompt tokens
ANSWER = (100, 300)  # tokens: shorter and longer ones become these
_SHORTEST = 1024
_ALWAYS = {"remote_tokens": 0, "remote_wait_s": 1e6}
TRACE = "mooncake_conversation_dev.jsonl.gz"

MODES = ("aggregated", "apart", "conditional")


def start(stack: ExitStack, directory: Path, mode: str, **changes: Any) -> System:
    """`changes`: to the pools' entries. Raises: Unavailable."""
    if mode == "aggregated":
        return stack.enter_context(fleet(directory / mode, {DECODE: pool("both", **changes)}, {DECODE: 2}))
    disagg = _ALWAYS if mode == "apart" else {}
    return stack.enter_context(pair(directory / mode, disagg, **changes))


@contextmanager
def pair(directory: Path, disagg: Mapping[str, Any], **changes: Any) -> Iterator[System]:
    """One prefill worker and one decode worker."""
    pools = {PREFILL: pool("prefill", disagg=dict(disagg), **changes), DECODE: pool("decode", **changes)}
    with fleet(directory, pools, dict.fromkeys(pools, 1)) as system:
        yield system


def pool(role: str, **changes: Any) -> dict[str, Any]:
    """An entry of the pools file: the mock with its defaults, and an unbounded queue."""
    return {
        "model": "mock", "engine": "mock", "role": role, "max_model_len": LONGEST + 1024,
        "busy": {"max_queued": 10_000}, **changes,
    }  # fmt: skip


def shapes() -> list[tuple[int, int]]:
    """(prompt tokens, answer tokens) of the trace's requests with long prompts. Raises: Unavailable."""
    with gzip.open(trace(TRACE), "rt") as lines:
        rows = [json.loads(line) for line in lines]
    low, high = ANSWER
    return [
        (row["input_length"], min(max(row["output_length"], low), high))
        for row in rows
        if _SHORTEST <= row["input_length"] <= LONGEST
    ]
