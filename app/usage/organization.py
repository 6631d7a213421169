"""Usage in the shape of OpenAI's `/v1/organization/usage/completions`: a tenant is a project."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from app.errors import RequestError
from app.usage.answer_types import OrganizationPage, OrganizationResult
from app.usage.query import WIDTHS, Group, UsageQuery, iso

_DIGITS = 12  # of a time
Width = Literal["1m", "1h", "1d"]
OrganizationGroup = Literal["project_id", "user_id", "api_key_id", "model", "batch", "service_tier"]

_GROUPS: Mapping[str, Group] = {"project_id": "tenant", "api_key_id": "key", "model": "model", "batch": "batch"}


class _Width(NamedTuple):
    group: Group
    usual: int  # buckets, as with OpenAI
    most: int


_WIDTHS: Mapping[Width, _Width] = {
    "1m": _Width("minute", 60, 1440),
    "1h": _Width("hour", 24, 168),
    "1d": _Width("day", 7, 31),
}


class Buckets(NamedTuple):
    """Buckets of one page: whole minutes, hours or days of UTC."""

    group: Group
    first: int  # seconds since the epoch
    number: int
    more: bool  # whether other ones follow

    @property
    def width(self) -> int:
        return WIDTHS[self.group]

    @property
    def end(self) -> int:
        return self.first + self.number * self.width


def buckets(start: int, end: int, width: Width, limit: int | None, page: str | None) -> Buckets:
    """Raises: RequestError."""
    group, usual, most = _WIDTHS[width]
    if end <= start:
        raise RequestError(f"'end_time' ({end}) has to be after 'start_time' ({start}).", param="end_time")
    if limit is not None and not 1 <= limit <= most:
        raise RequestError(
            f"'limit' ({limit}) has to be from 1 to {most} for a bucket_width of {width}.", param="limit"
        )
    seconds = WIDTHS[group]
    first = start // seconds * seconds
    if page is not None:
        at = page.removeprefix("page_")
        if at == page or not at.isdecimal() or len(at) > _DIGITS or int(at) % seconds or not first <= int(at) < end:
            raise RequestError(f"'page' ({page[:40]!r}) is not a 'next_page' of this request.", param="page")
        first = int(at)
    remaining_count = -((first - end) // seconds)  # rounded up
    number = min(remaining_count, limit or usual)
    return Buckets(group, first, number, remaining_count > number)


def query_of(
    buckets: Buckets,
    start: int,
    end: int,
    by: Sequence[OrganizationGroup],
    *,
    tenants: Sequence[str] = (),
    keys: Sequence[str] = (),
    models: Sequence[str] = (),
    batch: bool | None = None,
) -> UsageQuery:
    groups = [_GROUPS[name] for name in _GROUPS if name in by]
    since, until = max(start, buckets.first), min(end, buckets.end)
    return UsageQuery(
        since, until, (buckets.group, *groups), tenants, keys=keys, models=models, tasks=("generate",), batch=batch
    )


def page_of(buckets: Buckets, by: Sequence[OrganizationGroup], rows: Sequence[Mapping[str, Any]]) -> OrganizationPage:
    """`rows`: of that query. Lines of batches are one group, and all others another one."""
    results: dict[str, dict[tuple[object, ...], OrganizationResult]] = {}
    for row in rows:
        result = _result(row, by)
        bucket = results.setdefault(row[buckets.group], {})
        group = (result["project_id"], result["api_key_id"], result["model"], result["batch"])
        if (other := bucket.setdefault(group, result)) is not result:
            other["input_tokens"] += result["input_tokens"]
            other["output_tokens"] += result["output_tokens"]
            other["input_cached_tokens"] += result["input_cached_tokens"]
            other["num_model_requests"] += result["num_model_requests"]
    starts = range(buckets.first, buckets.end, buckets.width)
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": start,
                "end_time": start + buckets.width,
                "results": [*results.get(iso(start), {}).values()],
            }
            for start in starts
        ],
        "has_more": buckets.more,
        "next_page": f"page_{buckets.end}" if buckets.more else None,
    }


def _result(row: Mapping[str, Any], by: Sequence[OrganizationGroup]) -> OrganizationResult:
    groups = {name: row[group] for name, group in _GROUPS.items() if name in by}
    batch = groups.get("batch")
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": row["prompt_tokens"],
        "output_tokens": row["completion_tokens"],
        "input_cached_tokens": row["cached_tokens"],
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": row["requests"],
        "project_id": groups.get("project_id"),
        "user_id": None,
        "api_key_id": groups.get("api_key_id"),
        "model": groups.get("model"),
        "batch": None if batch is None else batch != "",
        "service_tier": None,
    }
