"""The state that API replicas want workers to have: adapters in `loras`, `prefixes:<pool>`, and `pool-state:<pool>`.

What workers do have is in their leases and in the prefix index.
"""

from typing import Any

from msgspec import Struct

from app.ids import PoolId, PrefixId
from app.messages.kinds import PauseMode
from app.messages.wire import decoder


class Adapter(Struct, frozen=True, array_like=True):
    """A LoRA adapter that the deployment is to serve."""

    name: str  # by which clients ask for it, as for a model
    version: int  # another one for each that is added or swapped in, never given twice
    model: str  # that it is made for
    source: str  # a path, or `s3://…`, `http://…`, `https://…`
    sha256: str = ""  # hexadecimal; of what, `app/adapters/fetch.py` says
    pools: list[PoolId] = []  # that load it; none: all of the model
    min_workers: int = 1  # of each pool, that have it in any case
    created: float = 0.0  # seconds since the epoch

    @property
    def versioned(self) -> str:
        """The name by which workers and engines know it: other weights never have the same."""
        return f"{self.name}@{self.version}"


class Prefix(Struct, frozen=True, array_like=True):
    """The beginning of prompts, that workers of a pool are to have in their caches. It never changes."""

    id: PrefixId
    model: str  # as requests name it
    tokens: list[int]
    created: float  # s since the epoch, by Redis' clock, as the next one
    until: float  # from then on it is evicted as any other
    copies: int | None = None  # how many workers of the pool have it; None: all
    cache_salt: str | None = None  # as of the requests that find it
    adapter: str | None = None  # its name: whichever version is answered with
    once: bool = False  # it is computed, and not kept
    dropped: bool = False  # its blocks are to leave the pool's store


class WeightsSource(Struct, frozen=True):
    """A source of weights: a folder, or a transfer group, in which a trainer sends them."""

    path: str = ""
    init: dict[str, Any] | None = None  # what the engine needs to join the group; None: it has joined
    update: dict[str, Any] | None = None  # what it needs to receive one update; None: from the path


class PoolState(Struct, frozen=True):
    """The state that operators want a pool's workers to have; those that start later take it over."""

    sleep: int = 0  # the level; 0: awake
    tags: list[str] = []  # what of them is awake all the same
    keep_awake: int = 0  # how many don't sleep
    paused: PauseMode | None = None
    weights: str = ""  # the version; "": the pool's own
    source: WeightsSource | None = None


decode_pool_state = decoder(PoolState)
decode_adapter = decoder(Adapter)
decode_prefix = decoder(Prefix)
