"""Other routers' policies, by their published formulas, and plain ones. Ours is `app.routing.simulated:Policy`."""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import count, takewhile
from math import exp
from random import Random
from typing import Any

from ops.bench.simulator.router import Views

Choose = Callable[[Sequence[int], Views], int]  # (the prompt's blocks, the workers) → the worker's index
ORACLE = "oracle"  # the bound: one infinite cache for all, and the truly shortest line
_TREE_TOKENS = 2**24  # that sglang-router remembers of a worker: 64 MiB of text, four bytes a token


def least(costs: Sequence[float], rng: Random) -> int:
    """The index of the least; of several, any."""
    lowest = min(costs)
    indices = [index for index, cost in enumerate(costs) if cost == lowest]
    return indices[0] if len(indices) == 1 else rng.choice(indices)


def round_robin(n_workers: int, **_: int) -> Choose:
    turns = count()
    return lambda _blocks, _views: next(turns) % n_workers


def any_worker(n_workers: int, seed: int, **_: int) -> Choose:
    rng = Random(seed)
    return lambda _blocks, _views: rng.randrange(n_workers)


def least_loaded(seed: int, **_: int) -> Choose:
    rng = Random(seed)
    return lambda _blocks, views: least([view.active_requests for view in views], rng)


def dynamo_cost(
    n_workers: int,
    block_size: int,
    seed: int,
    overlap_weight: float = 1.0,
    temperature: float = 0.0,
    formula: str = "linear",
) -> Choose:
    """NVIDIA Dynamo's KV router: its default selector, or with `formula=lmetric` its other one.

    The cost is overlap_weight × the blocks that wait to be computed there, with this prompt's, + the blocks in use
    there, with this prompt's. `lmetric` multiplies the two. Above a temperature of 0 the choice is drawn by a softmax.
    """
    rng = Random(seed)

    def choose(_blocks: Sequence[int], views: Views) -> int:
        costs = []
        for view in views:
            new_tokens = views.input_tokens - min(view.cached_blocks * block_size, views.input_tokens)
            prefill_blocks = (view.active_prefill_tokens + new_tokens) / block_size
            if formula == "lmetric":
                costs.append(prefill_blocks * (view.potential_blocks + 1))
            else:
                costs.append(overlap_weight * prefill_blocks + view.potential_blocks)
        low, high = min(costs), max(costs)
        if temperature == 0 or low == high:
            return least(costs, rng)
        weights = [exp((low - cost) / ((high - low) * temperature)) for cost in costs]
        return rng.choices(range(n_workers), weights)[0]

    return choose


class Sglang:
    """sglang-router's `cache_aware`: a tree of what it has sent where, instead of what workers tell."""

    def __init__(
        self,
        n_workers: int,
        block_size: int,
        seed: int,
        cache_threshold: float = 0.3,
        balance_abs: int = 64,
        balance_rel: float = 1.5,
    ) -> None:
        """Chooses the shortest queue where loads differ by more than both bounds.

        Else the worker that was last sent the prompt's beginning, if that is more than `cache_threshold` of the
        prompt; or the one with the smallest tree.
        """
        self._threshold, self._abs, self._rel = cache_threshold, balance_abs, balance_rel
        self._rng = Random(seed)
        self._most = _TREE_TOKENS // block_size
        self._trees = [OrderedDict[int, None]() for _ in range(n_workers)]
        self._last: dict[int, int] = {}  # by block: the worker that was last sent it

    def __call__(self, blocks: Sequence[int], views: Views) -> int:
        worker = self._choose(blocks, [view.active_requests for view in views])
        tree = self._trees[worker]
        for block in reversed(blocks):
            self._last[block] = worker
            tree[block] = None
            tree.move_to_end(block)
        while len(tree) > self._most:
            block, _ = tree.popitem(last=False)
            if self._last.get(block) == worker:
                del self._last[block]
        return worker

    def _choose(self, blocks: Sequence[int], loads: Sequence[int]) -> int:
        if max(loads) - min(loads) > self._abs and max(loads) > self._rel * min(loads):
            return least(loads, self._rng)
        depth = sum(1 for _ in takewhile(self._last.__contains__, blocks))
        if depth / len(blocks) > self._threshold:
            return self._last[blocks[depth - 1]]
        return least([len(tree) for tree in self._trees], self._rng)


OWN: dict[str, Callable[..., Choose]] = {
    "round_robin": round_robin, "random": any_worker, "least_loaded": least_loaded, "dynamo_cost": dynamo_cost,
    "sglang": Sglang, ORACLE: least_loaded,
}  # fmt: skip


def policy_of(name: str, n_workers: int, block_size: int, seed: int) -> Any:
    """`name?parameter=value&…`, where the name is one of `OWN`, or `module:class`. Raises: LookupError."""
    name, _, query = name.partition("?")
    parameters = {key: _value(text) for key, text in (pair.split("=", 1) for pair in query.split("&") if pair)}
    module, _, attribute = name.partition(":")
    if not attribute and name not in OWN:
        raise LookupError(f"no policy {name!r}: one of {', '.join(OWN)}, or module:class")
    make = getattr(import_module(module), attribute) if attribute else OWN[name]
    return make(n_workers=n_workers, block_size=block_size, seed=seed, **parameters)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
