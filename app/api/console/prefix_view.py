"""The prefixes that the latest prompts have in common, as a tree, and which caches have them."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from app.api.console.answer_types import PrefixesOfPool, SharedPrefix
from app.api.state import ApiState
from app.ids import PlaceId, PoolId, place_id
from app.kv.blocks import HASH_BYTES, common_blocks
from app.kv.prefix_index import packed
from app.messages.lease import Lease

_CHILDREN, _DEPTH = 6, 4  # of the tree that is shown


class Node(Struct, frozen=True):
    """A prefix that two prompts or more have in common, and longer ones that some of these have."""

    last: bytes  # the hash of its last block, which stands for all before it, too
    blocks: int  # from the prompts' beginning on
    prompts: int
    longer: Sequence["Node"]

    def all(self) -> Iterator["Node"]:
        yield self
        for node in self.longer:
            yield from node.all()


def tree(prompts: Sequence[bytes], start: int = 0, depth: int = _DEPTH) -> list[Node]:
    """The hottest prefixes of these prompts (packed block hashes) that all have their first `start` blocks in common.

    Hot is what saves most: the prompts that have it, times its blocks.
    """
    if not depth:
        return []
    at = start * HASH_BYTES
    longer = sorted(prompt for prompt in prompts if len(prompt) > at)
    nodes = []
    for _, group in groupby(longer, lambda prompt: prompt[at : at + HASH_BYTES]):
        alike = list(group)
        if len(alike) > 1:
            blocks = common_blocks(alike[0], alike[-1])  # sorted: what these two share, all do
            last = alike[0][(blocks - 1) * HASH_BYTES : blocks * HASH_BYTES]
            nodes.append(Node(last, blocks, len(alike), tree(alike, blocks, depth - 1)))
    return sorted(nodes, key=lambda node: -node.prompts * node.blocks)[:_CHILDREN]


async def prefixes_now(state: ApiState) -> list[PrefixesOfPool]:
    """Prefixes of each pool that has had prompts lately. Raises: StoreDown."""
    placements = list(state.dispatcher.timelines.placed)
    pools: list[PrefixesOfPool] = []
    for pool in dict.fromkeys(one.pool for one in placements):
        size = state.fleet.grids[pool].step
        prompts = [one.blocks for one in placements if (one.pool, one.step) == (pool, size)]
        trees = tree(prompts)
        places = await _places(state, pool, [node for root in trees for node in root.all()])
        pools.append(
            {
                "pool": pool,
                "prompts": len(prompts),
                "block_size": size,
                "prefixes": [_shown(root, size, places) for root in trees],
            }
        )
    return pools


async def _places(state: ApiState, pool: PoolId, nodes: Sequence[Node]) -> dict[bytes, list[PlaceId]] | None:
    """Places where each prefix is cached as a whole; None: the index is away, or the engines tell it nothing."""
    leases = await state.fleet.live([pool])
    if not nodes or not all(lease.worker.kv_events for lease in leases):
        return None
    hashes = [node.last for node in nodes]
    reply = await state.fleet.index.ask([("HMGET", state.keys.cached(pool)[0], *hashes)])
    if reply is None:
        return None
    caches = _by_number(leases)
    return {last: _named(raw_numbers or b"", caches) for last, raw_numbers in zip(hashes, reply[0], strict=True)}


def _by_number(leases: Sequence[Lease]) -> dict[bytes, PlaceId]:
    return {
        packed(number): place_id(lease.worker.id, rank) for lease in leases for rank, number in enumerate(lease.caches)
    }


def _named(raw_numbers: bytes, caches: dict[bytes, PlaceId]) -> list[PlaceId]:
    numbers = (raw_numbers[i : i + 4] for i in range(0, len(raw_numbers), 4))
    return [caches[number] for number in numbers if number in caches]


def _shown(node: Node, size: int, places: dict[bytes, list[PlaceId]] | None) -> SharedPrefix:
    return {
        "digest": node.last.hex(),
        "tokens": node.blocks * size,
        "prompts": node.prompts,
        "places": None if places is None else places[node.last],
        "longer": [_shown(one, size, places) for one in node.longer],
    }
