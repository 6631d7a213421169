"""The policy as a simulator calls it."""

from collections import Counter
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from app.routing.simulated import Policy


@dataclass
class View:
    id: int
    cached_blocks: int
    potential_blocks: int
    total_blocks: int = 4000
    active_requests: int = 0
    active_blocks: int = 0


class Views(list[View]):
    """The views that the routing simulator hands over: one object a worker, and figures of the request."""

    def __init__(self, cached: list[int], tokens: int = 5120, now: float = 0.0, request: int = 0) -> None:
        super().__init__(View(i, c, potential_blocks=tokens // 512) for i, c in enumerate(cached))
        self.now, self.input_tokens, self.request_id, self.block_size = now, tokens, request, 512


BLOCKS = tuple(range(10))


def test_a_cached_prefix_is_followed() -> None:
    policy = Policy(n_workers=3, block_size=512, seed=1)
    assert policy(BLOCKS, Views([0, 8, 2])) == 1


def test_equal_workers_share_evenly() -> None:
    """Each request has ended here before the next comes."""
    policy = Policy(n_workers=4, block_size=512, seed=1)
    counts: Counter[int] = Counter()
    for i in range(800):
        worker = policy(BLOCKS, Views([0] * 4, now=float(i), request=i))
        counts[worker] += 1
        policy.on_prefill_done(i + 0.5, i, worker)
        policy.on_finish(i + 0.6, i, worker)
    assert all(150 < counts[w] < 250 for w in range(4)), counts


def test_what_waits_there_counts_until_its_prefill_is_done() -> None:
    """A worker with a queue is passed by for one that has none, though it has the prefix."""
    policy = Policy(n_workers=2, block_size=512, seed=1)
    for i in range(3):
        assert policy(BLOCKS, Views([0, 9], request=i)) == 1
    assert [policy(BLOCKS, Views([0, 2], tokens=51_200, request=10 + i)) for i in range(2)] == [0, 1]


def test_parameters_are_those_of_the_pools_file() -> None:
    Policy(n_workers=2, block_size=512, seed=1, temperature=0.5, prefill_weight=2)
    with pytest.raises(ValidationError):
        Policy(n_workers=2, block_size=512, seed=1, weight=2)
