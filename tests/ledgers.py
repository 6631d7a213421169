"""Ledgers of KV blocks that have heard of some events."""

from app.kv.events import KvEvent
from app.kv.ledger import Ledger

SIZE = 4  # tokens of a block


def told(*events: KvEvent, has_store: bool = False, pictures: dict[int, tuple[int, str]] | None = None) -> Ledger:
    ledger = Ledger(SIZE, pictures=pictures, has_store=has_store)
    ledger.apply([*events])
    return ledger
