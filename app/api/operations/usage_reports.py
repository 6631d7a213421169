"""Reports what requests used: to operators, in our shape and in OpenAI's, and to tenants what they used themselves."""

import io
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.http.answered import Responses, answers
from app.api.operations.admin import Admin
from app.api.operations.reports import REPORTS
from app.api.state import ApiState, state_of
from app.usage.answer_types import OrganizationPage, UsageReport
from app.usage.export import Format, write_csv, write_parquet
from app.usage.organization import OrganizationGroup, Width, buckets, page_of, query_of
from app.usage.query import LATEST, UsageQuery, grouped_by, iso, period

if TYPE_CHECKING:
    from app.usage.database import UsageDatabase

router = APIRouter(tags=["usage"])
Rows = list[dict[str, Any]]

_MOST_ROWS = 100_000
_ADMINS = "admins"  # as who asks for a report
_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_FILES: Responses = {200: {"model": UsageReport, "content": {kind: {} for kind in _TYPES.values()}}}
_MOMENT = "Seconds since the epoch, or a date, with a time or without."

By = Annotated[
    str, Query(description="With commas between: tenant, key, model, task, outcome, batch, minute, hour, day.")
]
From = Annotated[str, Query(alias="from", description=_MOMENT)]
To = Annotated[str, Query(alias="to", description=_MOMENT)]
As = Annotated[Format | None, Query(alias="format", description="If not given, as the header `Accept` says.")]
Names = Annotated[list[str] | None, Query()]


@cache
def _database(url: str) -> "UsageDatabase":
    from app.usage.database import UsageDatabase  # a fifth of a second, for those who ask for it

    return UsageDatabase(url)


async def _made(state: ApiState, owner: str, query: UsageQuery, write: Callable[[Rows], bytes]) -> bytes:
    """A report, read and written in a thread. Raises: UsageDown, SettingsError, RequestError, RateLimited."""
    settings = state.settings

    def make() -> bytes:
        rows = _database(settings.usage_database).grouped(query, _MOST_ROWS, settings.usage_report_s)
        return write(rows)

    return await REPORTS.made(owner, make)


@router.get("/admin/usage", responses=_FILES)
async def report_usage(
    request: Request,
    state: Admin,
    group_by: By = "tenant",
    since: From = "",
    until: To = "",
    tenant: Names = None,
    key: Names = None,
    model: Names = None,
    form: As = None,
) -> Response:
    """Sums of the requests that ended in a time, the last thirty days if none is given, by the named groups."""
    query = UsageQuery(*period(since, until), grouped_by(group_by), tenant or (), key or (), model or ())
    return await _report(request, state, _ADMINS, query, form)


@router.get("/v1/usage", responses=_FILES)
async def report_own_usage(
    request: Request, group_by: By = "model", since: From = "", until: To = "", form: As = None
) -> Response:
    """The same, of the tenant that the API key belongs to."""
    state = state_of(request)
    client = state.api_keys.client(request.scope)
    query = UsageQuery(*period(since, until), grouped_by(group_by), (client.tenant.name,))
    return await _report(request, state, f"key:{client.key}", query, form)


async def _report(request: Request, state: ApiState, owner: str, query: UsageQuery, form: Format | None) -> Response:
    if form is None:
        accept = request.headers.get("accept", "")
        form = "csv" if "text/csv" in accept else "parquet" if _TYPES["parquet"] in accept else "json"
    content = await _made(state, owner, query, partial(_file, form, query))
    headers = {} if form == "json" else {"content-disposition": f'attachment; filename="usage.{form}"'}
    return Response(content, media_type=_TYPES.get(form, "application/json"), headers=headers)


def _file(form: Format, query: UsageQuery, rows: Rows) -> bytes:
    if form == "json":
        data: Any = rows
        report: UsageReport = {
            "object": "list",
            "from": iso(query.since),
            "to": iso(query.until),
            "group_by": query.by,
            "data": data,
        }
        return orjson.dumps(report)
    if form == "csv":
        text = io.StringIO()
        write_csv([rows], query.columns, text)
        return text.getvalue().encode()
    out = io.BytesIO()
    write_parquet([rows], query.columns, out)
    return out.getvalue()


def _listed(name: str) -> Any:
    """A query parameter as OpenAI's clients write a list: `name[]`."""
    return Query(alias=f"{name}[]", include_in_schema=False)


@router.get("/v1/organization/usage/completions", responses=answers(OrganizationPage))
async def report_organization_usage(
    state: Admin,
    start_time: Annotated[int, Query(ge=0, le=LATEST)],
    end_time: Annotated[int | None, Query(ge=0, le=LATEST)] = None,
    bucket_width: Width = "1d",
    group_by: Annotated[list[OrganizationGroup] | None, Query()] = None,
    group_by_: Annotated[list[OrganizationGroup] | None, _listed("group_by")] = None,
    project_ids: Names = None,
    project_ids_: Annotated[list[str] | None, _listed("project_ids")] = None,
    api_key_ids: Names = None,
    api_key_ids_: Annotated[list[str] | None, _listed("api_key_ids")] = None,
    models: Names = None,
    models_: Annotated[list[str] | None, _listed("models")] = None,
    batch: bool | None = None,
    limit: int | None = None,
    page: str | None = None,
) -> Response:
    """Reports as OpenAI's endpoint of that name does, on requests that generate text. A tenant is a project."""
    end = int(time.time()) + 1 if end_time is None else end_time
    by = [*(group_by or ()), *(group_by_ or ())]
    page_buckets = buckets(start_time, end, bucket_width, limit, page)
    query = query_of(
        page_buckets,
        start_time,
        end,
        by,
        batch=batch,
        tenants=project_ids or project_ids_ or (),
        keys=api_key_ids or api_key_ids_ or (),
        models=models or models_ or (),
    )

    def written(rows: Rows) -> bytes:
        return orjson.dumps(page_of(page_buckets, by, rows))

    return Response(await _made(state, _ADMINS, query, written), media_type="application/json")
