"""The prefill pool that a table chooses, by a prompt's length and its target: real processes, NIXL and the client."""

import signal
from typing import Any

import pytest

from tests.acceptance.test_disagg import pool
from tests.serving import client_of, refused, served_by
from tests.stack import Stack, all_free, leases, timeline, wait_until

DECODE = "decode-pool-a"
TABLE = {"tokens": [300], "target_ms": [200], "pools": [["fast", "fast"], ["short", "long"]]}
PREFILLS = ("short", "long", "fast")
served = served_by(
    {DECODE: pool("decode"), **{name: pool("prefill") for name in PREFILLS}},
    {"decode": DECODE, **{name: name for name in PREFILLS}},
    more={"select": {"mock": {"prefill": TABLE}}},
)
SHORT, LONG = "the quick brown fox " * 25, "the quick brown fox " * 200


def computed_by(s: Stack, prompt: str, **routing: float) -> str:
    """The pool that computed a prompt for the one that decodes."""
    extra: dict[str, Any] = {"routing": routing} if routing else {}
    with client_of(s.url) as client:
        answer = client.completions.create(model="mock", prompt=prompt, max_tokens=4, extra_body=extra)
    record = timeline(s, answer.id)
    pools = {lease.worker.id: lease.worker.pool for lease in leases(s)}
    prefill, decode = (pools[one["worker"]] for one in record["workers"])
    assert decode == DECODE
    assert (record["prompt_tokens"] > 300) == prompt.endswith(LONG)
    return prefill


@pytest.mark.parametrize(("prompt", "routing", "expected"), [
    (SHORT, {}, "short"),
    (LONG, {}, "long"),
    (SHORT, {"ttft_ms": 200}, "fast"),
    (LONG, {"ttft_ms": 150.5}, "fast"),
    (SHORT, {"ttft_ms": 201}, "short"),
    (LONG, {"ttft_ms": 5000}, "long"),
])  # fmt: skip
def test_length_and_target_choose_the_pool_that_computes_a_prompt(
    served: Stack, prompt: str, routing: dict[str, float], expected: str
) -> None:
    assert computed_by(served, f"{expected} {routing} {prompt}", **routing) == expected


def test_a_pool_without_a_live_worker_is_skipped_for_another_one(served: Stack) -> None:
    served.names["fast"].send_signal(signal.SIGKILL)
    wait_until(lambda: not leases(served, "fast"), "it is gone")
    assert computed_by(served, "skipped " + LONG, ttft_ms=100) in ("short", "long")
    served.worker("fast", "fast")
    wait_until(lambda: leases(served, "fast"), "it is there again", 60)
    assert computed_by(served, "again " + LONG, ttft_ms=100) == "fast"
    wait_until(lambda: all_free(served, DECODE, *PREFILLS), "nothing is held or reserved")


def test_a_target_that_no_table_is_of_is_refused_by_name(served: Stack) -> None:
    with refused("routing.itl_ms"), client_of(served.url) as client:
        client.completions.create(
            model="mock", prompt=SHORT, max_tokens=1, extra_body={"routing": {"ttft_ms": 100, "itl_ms": 20}}
        )
