"""The query of a report."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, get_args

from msgspec import Struct

from app.errors import RequestError

Group = Literal["tenant", "key", "model", "task", "outcome", "batch", "minute", "hour", "day"]
GROUPS: tuple[Group, ...] = get_args(Group)
WIDTHS: Mapping[str, int] = {"minute": 60, "hour": 3600, "day": 86_400}  # seconds, of UTC
SUMS: Mapping[str, type] = {
    "requests": int,  # without those that were refused
    "refused": int,
    "prompt_tokens": int,
    "cached_tokens": int,
    "completion_tokens": int,
    "images": int,
    "engine_s": float,
    "cost": float,
}
LATEST = 253_402_214_400  # seconds since the epoch: the last day that dates know
_DAYS = 30


class UsageQuery(Struct, frozen=True):
    """Records that ended from `since` until before `until`, seconds since the epoch."""

    since: float
    until: float
    by: Sequence[Group] = ()
    tenants: Sequence[str] = ()  # empty: all, here and below
    keys: Sequence[str] = ()
    models: Sequence[str] = ()
    tasks: Sequence[str] = ()
    batch: bool | None = None  # whether it was a line of one; None: either

    @property
    def columns(self) -> dict[str, type]:
        """Columns of a report grouped by it."""
        names = [*self.by, "key_name"] if "key" in self.by else self.by
        return dict.fromkeys(names, str) | dict(SUMS)


def period(since: str, until: str, now: float | None = None) -> tuple[float, float]:
    """The last thirty days, if nothing is said. Raises: RequestError."""
    now = time.time() if now is None else now
    end = moment(until, "to") if until else now + 1
    begin = moment(since, "from") if since else max(0.0, end - _DAYS * 86_400)
    if begin >= end:
        raise RequestError(f"'from' ({since or iso(begin)}) has to be before 'to' ({until or iso(end)}).", param="from")
    return begin, end


def moment(text: str, param: str) -> float:
    """Seconds since the epoch; or a date, with a time or without, of UTC if it names no zone. Raises: RequestError."""
    try:
        if text.replace(".", "", 1).isdecimal() and len(text) < 20:
            at = float(text)
        else:
            date = datetime.fromisoformat(text)
            at = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        at = -1.0
    if not 0 <= at <= LATEST:
        raise RequestError(
            f"'{param}'={text[:40]!r} has to be seconds since the epoch, or a date such as '2026-07-01' or "
            "'2026-07-01T12:00:00Z', from 1970 to 9999.",
            param=param,
        )
    return at


def grouped_by(text: str) -> tuple[Group, ...]:
    """Groups, from names with commas between. Raises: RequestError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in GROUPS:
            raise RequestError(f"'group_by' has {name[:40]!r}: there are {', '.join(GROUPS)}.", param="group_by")
    return tuple(group for group in GROUPS if group in names)


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
