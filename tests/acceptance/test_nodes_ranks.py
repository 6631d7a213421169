"""One vLLM with a data-parallel rank on each of two hosts.

`make nodes`, as root: each host is a network namespace, and loading takes minutes.
"""

from collections.abc import Iterator

import pytest

from tests.nodes import POOL, STORY, VLLM, Hosts, answer, epoch, on_hosts, recovers
from tests.shallow import shallow_model
from tests.stack import indexed_blocks, leases, wait_until

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """One vLLM with a data-parallel rank on each of two hosts."""
    pool = VLLM | {"path": str(shallow_model()), "nodes": 2, "data_parallel_size": 2}
    with on_hosts(tmp_path_factory.mktemp("ranks"), pool, 2) as hosts:
        hosts.wait_ready()
        yield hosts


def test_ranks_on_two_hosts_have_caches_of_their_own_in_the_index(ranks: Hosts) -> None:
    """The second rank's index is fed on its own host, and routing finds both."""
    wait_until(lambda: len(leases(ranks.stack, POOL)[0].caches) == 2, "both ranks are in the lease")
    for i in range(6):  # an empty rank is preferred to one that is busy: both get some
        answer(ranks, 4, f"Story number {i}: {STORY}")

    def told() -> bool:
        (lease,) = leases(ranks.stack, POOL)
        return all(lease.caches) and len(lease.caches) == 2

    wait_until(told, "both caches have numbers", 60)
    assert indexed_blocks(ranks.stack, POOL) > 0


def test_a_rank_that_is_killed_ends_the_engine_which_comes_back(ranks: Hosts) -> None:
    text, before = answer(ranks, 12), epoch(ranks)
    ranks.kill(ranks.follower())
    recovers(ranks, before)
    assert answer(ranks, 12) == text
