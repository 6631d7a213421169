"""The inputs and the result of a routing decision."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.messages.lease import Lease


class PlaceLimits(Struct, frozen=True):
    """A place at one of these limits gets no more requests. Can be changed at run time, in `limits:<pool>`."""

    max_queued: int  # requests beyond `max_running`
    active_blocks: float | None = None  # share of its KV blocks that requests hold
    queued_tokens: int | None = None  # prompt tokens that wait for their prefill
    # For prefill pools: see `pools.Disagg`.
    remote_tokens: int = 128
    remote_wait_s: float | None = None


class Room(Struct, frozen=True):
    """The part of a place that a request may use."""

    queue: bool = True  # its queue too. Not where tenants share it: what is in there can't be reordered
    kept: int = 0  # seats that it leaves free for tenants that have less than their share


ALL = Room()


class Candidate(Struct, frozen=True):
    """A place that a request may get, a worker or one data-parallel rank of it, and the load reserved there."""

    lease: Lease
    limits: PlaceLimits
    rank: int = 0
    requests: int = 0
    blocks: int = 0  # KV blocks that these requests hold or will hold
    tokens: int = 0  # prompt tokens to compute, of requests without a first token
    waiting: int = 0  # requests without a first token
    since: float = 0.0  # when the first of them began, seconds since the epoch
    pulls: int = 0  # blocks to pull from prefill workers, for requests without a first token
    # Aside requests, and the blocks that they hold or will hold; not in the numbers above.
    aside: int = 0
    aside_blocks: int = 0


class Tiered(Struct, frozen=True):
    """Blocks of a prompt that a place loads from tiers, behind those that it has cached."""

    host: int = 0  # from the host's memory
    store: int = 0

    @property
    def blocks(self) -> int:
        return self.host + self.store


NOT_TIERED = Tiered()


class Option(Struct, frozen=True):
    """A candidate, and how much of one prompt its cache has."""

    candidate: Candidate
    cached: int = 0  # leading blocks of the prompt in its KV cache
    coming: int = 0  # the same, with blocks that requests waiting there will leave in it
    beginning: int = 0  # the same, in the layers that see everything: more than `cached` where that can't be resumed
    loading_s: float = 0.0  # until its adapter is loaded there
    tiered: Tiered = NOT_TIERED

    @property
    def loads(self) -> bool:
        """Whether it takes KV from tiers: not if requests before it do so, or compute it."""
        return self.cached + self.tiered.blocks > max(self.cached, self.coming)


class Matches(Struct, frozen=True):
    """The blocks of one prompt that a pool's places have; places are indices of its candidates."""

    # So many leading blocks, and the places that hold them; the deepest first, and a place's first entry counts.
    depths: Sequence[tuple[int, frozenset[int]]] = ()
    coming: Mapping[int, int] = {}  # by place: leading blocks that requests waiting there will leave in the cache
    tiered: Mapping[int, Tiered] = {}  # by place
    beginnings: Sequence[tuple[int, frozenset[int]]] = ()  # as `depths`, of the layers that see everything

    def option(self, place: int, candidate: Candidate) -> Option:
        cached_blocks = _deepest(self.depths, place) if self.depths else 0
        beginning = _deepest(self.beginnings, place) if self.beginnings else 0
        coming = max(cached_blocks, self.coming.get(place, 0))
        return Option(candidate, cached_blocks, coming, beginning, tiered=self.tiered.get(place, NOT_TIERED))


def _deepest(depths: Sequence[tuple[int, frozenset[int]]], place: int) -> int:
    for depth, places in depths:
        if place in places:
            return depth
    return 0


class Ask(Struct, frozen=True):
    """A request to be placed."""

    prompt_tokens: int
    max_tokens: int
    n: int = 1  # answers to the one prompt
    session: str | None = None  # requests of one session prefer the same place
    aside: bool = False  # gives way to online requests
    holds: bool = True  # it holds KV blocks until its end; inputs and paintings don't
    now: float = 0.0  # when it is placed, seconds since the epoch
    room: Room = ALL


class Placement(Struct, frozen=True):
    pool: PoolId
    worker: WorkerId
    rank: int
    blocks: int  # KV blocks to reserve
    tokens: int  # prompt tokens that will have to be computed
    cached: int  # blocks expected in the cache
    pulls: int = 0  # blocks to pull from the prefill worker; then `tokens` is 0
    tiered: Tiered = NOT_TIERED  # blocks expected to be loaded
    lends: bool = False  # for another worker of its pool, and for a step only: it counts as an aside request does


class PlacementCost(Struct, frozen=True):
    """The cost of placing a request here: in seconds (policy `kv`), or in the policy's own unit (only `wait`)."""

    wait: float  # until its prefill begins
    prefill: float = 0.0  # of its own prompt
    others: float = 0.0  # its delay of other requests
    saves: float = 0.0  # what later prompts may be spared by it

    @property
    def total(self) -> float:
        return self.wait + self.prefill + self.others - self.saves


class Decision(Struct, frozen=True):
    placement: Placement
    scored: list[tuple[Option, PlacementCost]]  # all candidates that could have taken it
    policy: str = "kv"
