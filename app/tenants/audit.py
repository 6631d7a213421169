"""The audit log: who has changed what, and when. No secrets, prompts or answers."""

from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

import orjson
from msgspec import Struct
from typing_extensions import TypedDict

from app.errors import StoreDown
from app.keys import Keys
from app.messages.wire import decoder, encode
from app.store import Command, Wire, clock
from app.telemetry import logger

log = logger(__name__)

WHO, NOTED = "xylem.who", "xylem.noted"  # in the scope of an admin's request: who it is, and that it is in the log
MOST_ENTRIES = 100_000
_MOST_BYTES = 4096  # of an entry's detail
_SECRET = ("key", "token", "secret", "password", "authorization", "init", "update")  # of fields
_HIDDEN = "…"


class AuditEntry(TypedDict, closed=True):
    """An entry as it is shown."""

    id: str
    when: float  # seconds since the epoch
    who: str
    action: str
    target: str
    detail: dict[str, Any]
    outcome: str  # "ok", or the error's code


class Entry(Struct, frozen=True, array_like=True):
    when: float  # seconds since the epoch
    who: str  # "admin key"; "oidc: <subject>"; "loopback", where no key is needed; "command line: <user>@<host>"
    action: str  # "PATCH /admin/aliases", "xylem keys create"
    target: str  # the name of what was changed
    detail: str  # JSON
    outcome: str = "ok"  # or the error's code


def entry(
    who: str, action: str, target: str, detail: Mapping[str, Any], outcome: str = "ok", when: float | None = None
) -> Entry:
    """`when`: now, if not given. Values of fields that may be secrets are left out."""
    detail_json = orjson.dumps(_without_secrets(detail), default=str)
    if len(detail_json) > _MOST_BYTES:
        detail_json = orjson.dumps({"fields": sorted(map(str, detail))[:100], "bytes": len(detail_json)})
    return Entry(
        clock.now() if when is None else when, who, action, target[:500], detail=detail_json.decode(), outcome=outcome
    )


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            str(name): _HIDDEN if str(name).lower() in _SECRET and part is not None else _without_secrets(part)
            for name, part in value.items()
        }
    return [_without_secrets(part) for part in value] if isinstance(value, list | tuple) else value


class _State(Protocol):
    @property
    def wire(self) -> Wire: ...

    @property
    def keys(self) -> Keys: ...


class _Request(Protocol):
    @property
    def scope(self) -> MutableMapping[str, Any]: ...


async def note(
    state: _State, request: _Request, action: str, target: str, detail: Mapping[str, Any], outcome: str = "ok"
) -> None:
    """Notes what the request of an admin has done. One that notes itself is not noted again by its route."""
    request.scope[NOTED] = True
    record = entry(request.scope.get(WHO, "nobody"), action, target, detail, outcome)
    try:
        await state.wire.execute([note_command(state.keys, record)])
    except StoreDown as exc:  # it is done, and can't be undone for that
        log.error("not_in_audit_log", action=action, target=target, who=record.who, error=exc.message)


def note_command(keys: Keys, entry: Entry) -> Command:
    return ("XADD", keys.audit(), "MAXLEN", "~", MOST_ENTRIES, "*", "b", encode(entry))


def read_command(keys: Keys, after: str, limit: int, *, newest_first: bool = False) -> Command:
    """Up to `limit` entries after the one with the id `after`; newest first, before it."""
    if not newest_first:
        return ("XRANGE", keys.audit(), f"({after}" if after else "-", "+", "COUNT", limit)
    # Redis refuses an open interval that ends at 0-0, which no entry has.
    end = after if after and not after.strip("0-") else f"({after}" if after else "+"
    return ("XREVRANGE", keys.audit(), end, "-", "COUNT", limit)


def shown(replies: list[tuple[bytes, Any]]) -> list[AuditEntry]:
    """Entries in a read's reply."""
    return [_shown(id_, fields[b"b"] if isinstance(fields, Mapping) else fields[1]) for id_, fields in replies]


def _shown(id_: bytes, record: bytes) -> AuditEntry:
    audit_entry = decode_entry(record)
    return {
        "id": id_.decode(),
        "when": audit_entry.when,
        "who": audit_entry.who,
        "action": audit_entry.action,
        "target": audit_entry.target,
        "detail": orjson.loads(audit_entry.detail),
        "outcome": audit_entry.outcome,
    }


decode_entry = decoder(Entry)
