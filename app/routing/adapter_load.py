"""Finds where an adapter that nobody has yet may be loaded, and how long that takes. Pure."""

from collections.abc import Sequence

from msgspec.structs import replace

from app.errors import AdapterFailed
from app.messages.wanted import Adapter
from app.routing.candidates import Option

_LOAD_S = 1.0  # of a worker that has loaded none yet


def may_load(adapter: Adapter, options: Sequence[Option]) -> list[Option]:
    """The options that can load it, with the time it takes; none where nobody lives.

    Raises: AdapterFailed where somebody does, but nobody can.
    """
    name = adapter.versioned
    able = [o for o in options if o.candidate.lease.worker.max_adapters and _is_for(adapter, o)]
    if options and not able:
        raise AdapterFailed(f"No worker for '{adapter.name}' takes LoRA adapters.")
    hopeful = [o for o in able if name not in o.candidate.lease.adapters.failed]
    if able and not hopeful:
        raise AdapterFailed(f"The adapter '{adapter.name}' can't be loaded. An admin sees why: /admin/loras.")
    return [replace(o, loading_s=o.candidate.lease.adapters.load_s or _LOAD_S) for o in hopeful]


def _is_for(adapter: Adapter, option: Option) -> bool:
    return not adapter.pools or option.candidate.lease.worker.pool in adapter.pools
