"""Compares what is counted of clients' bytes, for their quotas, with what is there, and corrects it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from app.running.loops import keep
from app.store import Wire
from app.store.scripts import RECOUNT
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 300.0


class Bytes(NamedTuple):
    """Bytes of one account."""

    counted: int | None  # None: nothing is counted
    there: int

    @property
    def missing(self) -> int:
        return self.there - (self.counted or 0)


class Accounts(Protocol):
    """Accounts of one kind of what clients store. Its methods raise StoreDown."""

    kind: str

    async def read(self) -> Mapping[str, Bytes]:
        """Bytes by account: a key's, or that of all together. Changes meanwhile may be in one number only."""
        ...

    async def correct(self, account: str, actual: Bytes) -> bool:
        """Counts what is there. False: what is counted has changed since it was found."""
        ...


async def recounted(wire: Wire, key: str, field: str, actual: Bytes) -> bool:
    """`Accounts.correct`, of a field of a hash, or with "" of a string."""
    before = "" if actual.counted is None else actual.counted
    (was_corrected,) = await wire.execute([("EVAL", RECOUNT, 1, key, field, before, actual.there)])
    return bool(was_corrected)


class StoredAudit:
    """The comparison of counted with stored bytes. Each API replica does it, which does no harm.

    One look isn't enough: what is being stored, or removed, looks wrong for a moment.
    """

    def __init__(self, kinds: Sequence[Accounts]) -> None:
        self._kinds = kinds
        self._wrong: dict[tuple[str, str], int] = {}  # at the last look: kind and account, and bytes too few

    async def run(self) -> None:
        """Looks at all accounts again and again, until cancelled."""
        await keep("stored_bytes_not_read", self.look, _EVERY_S, later=True)

    async def look(self) -> None:
        """Corrects what was wrong by the same number of bytes at the last look. Raises: StoreDown."""
        wrong: dict[tuple[str, str], int] = {}
        for kind in self._kinds:
            for account, sizes in (await kind.read()).items():
                if not sizes.missing:
                    continue
                if self._wrong.get((kind.kind, account)) != sizes.missing:
                    wrong[kind.kind, account] = sizes.missing
                elif await kind.correct(account, sizes):
                    log.warning("stored_bytes_corrected", kind=kind.kind, account=account, bytes=sizes.missing)
        self._wrong = wrong
