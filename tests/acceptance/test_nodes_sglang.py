"""One SGLang over two hosts.

`make nodes`, as root: each host is a network namespace, and loading takes minutes.
"""

import asyncio
from collections.abc import Iterator

import pytest

from tests.nodes import POOL, SMALL, Hosts, answer, epoch, on_hosts, recovers, streamed
from tests.stack import indexed_blocks, wait_until
from tests.tiny import tiny_model

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    pool = SMALL | {"engine": "sglang", "block_size": 16, "args": {"max_total_tokens": 4096}}
    pool |= {"path": str(tiny_model()), "nodes": 2, "tensor_parallel_size": 2}
    with on_hosts(tmp_path_factory.mktemp("sglang"), pool, 2) as hosts:
        hosts.wait_ready()
        yield hosts


def test_an_sglang_on_two_hosts_makes_an_answer_and_survives_its_follower(sglang: Hosts) -> None:
    """The group does as vLLM's; its follower has no KV events, since the leader's are those of both."""
    text, before = answer(sglang, 24), epoch(sglang)
    wait_until(lambda: indexed_blocks(sglang.stack, POOL), "the leader's KV events are in the index")

    def lose() -> None:
        sglang.kill(sglang.follower())
        recovers(sglang, before)

    assert asyncio.run(streamed(sglang, 24, 5, lose)) == text
