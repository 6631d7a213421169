"""One vLLM whose tensors are on three hosts, and what becomes of it when one is lost.

`make nodes`, as root: each host is a network namespace, and loading takes minutes.
"""

import asyncio
from collections.abc import Iterator

import pytest

from tests.nodes import POOL, VLLM, Hosts, answer, epoch, on_hosts, recovers, streamed
from tests.shallow import shallow_model
from tests.stack import indexed_blocks, leases, wait_until

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """One vLLM whose tensors are on three hosts: its model has nine heads and three KV heads."""
    pool = VLLM | {"path": str(shallow_model()), "nodes": 3, "tensor_parallel_size": 3}
    with on_hosts(tmp_path_factory.mktemp("three"), pool, 3) as hosts:
        hosts.wait_ready()
        yield hosts


def test_tensors_on_three_hosts_make_an_answer(three: Hosts) -> None:
    """The first host to come leads; the two others have no lease for routing."""
    assert len(leases(three.stack, POOL)) == 1
    assert answer(three, 12) == answer(three, 12)
    others = [host for host in three.hosts if host != three.leader()]
    assert all("following" in three.log(host) and "engine_ready" not in three.log(host) for host in others)
    wait_until(lambda: indexed_blocks(three.stack, POOL), "the leader's KV events are in the index")


def test_an_idle_follower_that_is_killed_ends_the_engine_which_comes_back(three: Hosts) -> None:
    """vLLM itself would not notice before the next request, which would fail."""
    text, before = answer(three, 12), epoch(three)
    three.kill(three.follower())
    recovers(three, before)
    assert answer(three, 12) == text


def test_an_answer_survives_a_follower_that_is_killed_in_the_middle_of_it(three: Hosts) -> None:
    """The answer goes on in the new group, and says what it says undisturbed."""
    text, before = answer(three, 40), epoch(three)

    def lose() -> None:
        three.kill(three.follower())
        recovers(three, before)

    assert asyncio.run(streamed(three, 40, 5, lose)) == text
