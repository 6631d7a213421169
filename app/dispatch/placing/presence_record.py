"""Writes and reads what API replicas tell each other of the tenants that use a model, in `service:<model>`. No I/O."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain

from app.ids import ApiId, TenantId
from app.messages.wire import decoder, encode
from app.routing.fair_order import CLASSES, Flow
from app.routing.tenant_service import Account, Presence, TenantService
from app.store import Command, clock
from app.store.scripts import SERVE
from app.telemetry import logger

log = logger(__name__)

FRESH_S = 0.7  # so long a replica's word of what it has counts
_FORGET_S = 120.0  # accounts that were not used for so long
_LIFE_MS = 600_000
_MOST_ODD = 100

_decode_presences = decoder(list[Presence])


def held_everywhere(fields: Mapping[bytes, bytes], now: float) -> int:
    """The number of requests that wait for room, at all replicas; those of other versions count for none."""
    count = 0
    for field, value in fields.items():
        at, _, payload = value.partition(b" ")
        with suppress(ValueError, TypeError):
            if field[:1] == b"a" and now - float(at) < FRESH_S:
                count += sum(presence.held for presence in _decode_presences(payload))
    return count


class PresenceRecord:
    """The record as one replica writes and reads it."""

    def __init__(self, api: ApiId) -> None:
        self._field = f"a{api}"
        self._odd: set[bytes] = set()  # fields that were not understood, and logged

    def telling(self, key: str, service: TenantService) -> Command:
        """The command that tells the others of the changes, which it takes out of `service`, and of who is here."""
        present = encode([p for p in service.own.values() if p.running or p.waiting])
        now = clock.now()
        changes = [
            (
                f"t{flow.priority_class}{flow.tenant}",
                "" if c.floor == -float("inf") else repr(c.floor),
                repr(c.delta),
                repr(c.weight),
            )
            for flow, c in service.taken_changes().items()
        ]
        message = f"{now:.3f} ".encode() + present
        virtual = [repr(time_) for time_ in service.virtual]
        fields = (*virtual, *chain.from_iterable(changes))
        return "EVAL", SERVE, 1, key, _LIFE_MS, f"{now:.3f}", self._field, message, *fields

    def take(self, service: TenantService, fields: Mapping[bytes, bytes]) -> list[bytes]:
        """Has `service` hear what stands there. Returns the fields that nobody needs any more."""
        now, virtual = clock.now(), [0.0] * CLASSES
        accounts: dict[Flow, Account] = {}
        others: list[Presence] = []
        old_fields: list[bytes] = []
        for field, value in fields.items():
            try:
                name = field.decode()
                if name[:1] == "v":
                    virtual[int(name[1])] = float(value)
                elif name[:1] == "t":
                    account = Account(*map(float, value.split()[:3]))
                    if now - account.seen > _FORGET_S:
                        old_fields.append(field)
                    else:
                        accounts[Flow(int(name[1]), TenantId(name[2:]))] = account
                elif name != self._field:
                    at, _, payload = value.partition(b" ")
                    if now - float(at) < FRESH_S:
                        others += _decode_presences(payload)
                    elif now - float(at) > _FORGET_S:
                        old_fields.append(field)
            except (ValueError, TypeError, LookupError) as exc:  # of another version, perhaps: all else counts
                self._not_understood(field, exc)
        service.hear(virtual, accounts, others, now)
        return old_fields

    def _not_understood(self, field: bytes, exc: Exception) -> None:
        if field not in self._odd and len(self._odd) < _MOST_ODD:  # it is read four times a second
            self._odd.add(field)
            log.error("service_not_understood", field=repr(field[:100]), error=type(exc).__name__)
