"""Erasures: what was made with a key, or by a tenant, is removed, again and again for a day. Pure.

Again, since what was under way when it began may come later: an upload, a picture, a batch's line.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.ids import KeyId
from app.messages.wire import decoder

Kind = Literal["key", "tenant"]

_AGAIN_S = 1.0  # after a pass that has left something, or has failed
_SETTLED_S = 3.0  # from which on no API replica takes a revoked key for valid
_REPEATED_S = (10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86_400.0)  # after its begin


class Erasure(Struct, frozen=True, array_like=True):
    kind: Kind
    name: str  # of the key, or of the tenant
    began: float  # seconds since the epoch, here and below
    owners: list[KeyId]
    labels: list[str] = []  # of salts whose KV is to go: `kv_store.salts`
    removed: dict[str, int] = {}  # what, and how many so far
    looked: float = 0.0  # when the last pass ended
    clean: float = 0.0  # when a pass found nothing any more; 0: not yet
    clear: bool = False  # workers are to forget all KV, also other tenants', once nothing else is left
    refused: dict[str, str] = {}  # workers that have not, and why
    given_up: str = ""  # why it is not carried out any more, until somebody asks for it again

    @property
    def field(self) -> str:
        return field_of(self.kind, self.name)


def field_of(kind: Kind, name: str) -> str:
    return f"{kind}:{name}"


def is_due(erasure: Erasure, now: float) -> bool:
    """Whether it is time for a pass."""
    if erasure.given_up:
        return False
    if not erasure.clean:
        return now - erasure.looked >= _AGAIN_S
    return any(erasure.looked < erasure.began + after <= now for after in _REPEATED_S)


def is_over(erasure: Erasure, now: float) -> bool:
    """Whether it can be forgotten."""
    return bool(erasure.clean) and erasure.looked >= erasure.began + _REPEATED_S[-1] and not is_due(erasure, now)


def after_pass(erasure: Erasure, began: float, end: float, new_counts: dict[str, int], remainder: int) -> Erasure:
    """`began` and `end`: of the pass. `remainder`: how much of what it found is still there."""
    counts = {what: erasure.removed.get(what, 0) + count for what, count in new_counts.items()}
    is_settled = not remainder and not any(new_counts.values()) and began - erasure.began >= _SETTLED_S
    clean = erasure.clean or (end if is_settled else 0.0)
    return replace(erasure, removed=erasure.removed | counts, looked=end, clean=clean)


decode_erasure = decoder(Erasure)
