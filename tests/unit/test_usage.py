"""Decisions about records of usage, their prices and reports: pure functions."""

import csv
import io
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import InFlight
from app.dispatch.observing.request_usage import record_of
from app.dispatch.observing.timeline import Timelines
from app.errors import Cancelled, RequestError
from app.ids import ApiId, BatchId, KeyId, PoolId, RequestId, TenantId, WorkerId, line_id
from app.messages.job import Sampling, Stage
from app.telemetry import TENANT_REQUESTS, TENANT_TOKENS
from app.tenants.cost import Used
from app.tenants.records import NOBODY
from app.usage.export import write_csv
from app.usage.meters import OTHER, TenantMeters
from app.usage.organization import buckets, page_of, query_of
from app.usage.outbox import UsageOutbox
from app.usage.query import LATEST, grouped_by, iso, moment, period
from app.usage.record import LineTry, UsageRecord, latest
from tests.models import model

BATCH = BatchId("batch_1")
times = st.integers(0, 2**33)


def record(id_: str = "r", epoch: int = 0, *, tenant: str = "t", **changes: Any) -> UsageRecord:
    values: dict[str, Any] = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5} | changes
    identity = RequestId(id_), epoch, 1000.0, TenantId(tenant), KeyId("k")
    return UsageRecord(*identity, "name", values.pop("model", "m"), "generate", values.pop("outcome", "ok"), **values)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3))))
def test_of_each_id_the_first_record_of_the_highest_epoch_counts(written: list[tuple[str, int]]) -> None:
    records = [record(id_, epoch, completion_tokens=n) for n, (id_, epoch) in enumerate(written)]
    latest_records = latest(records)
    assert {r.id for r in latest_records} == {id_ for id_, _ in written}
    assert len(latest_records) == len({r.id for r in latest_records})
    for one in latest_records:
        assert one == next(r for r in records if r.id == one.id and r.epoch == max(e for i, e in written if i == r.id))


@pytest.mark.parametrize(("worker", "records"), [("", 0), ("w", 1)])
async def test_a_lines_try_that_no_worker_had_is_no_request(worker: str, records: int) -> None:
    """The line is tried again, by the same batch worker or another one: its limits have got it back."""
    outbox, sent_requests = MagicMock(UsageOutbox), list[InFlight]()
    dispatcher = MagicMock(
        Dispatcher, api=ApiId("a"), hook=None, usage=outbox, recorder=None, traffic=None, timelines=Timelines(),
        token_redis=0,
        send=AsyncMock(side_effect=sent_requests.append),
    )  # fmt: skip
    call = Generation(GenerationPlan("cmpl-", model(), [[1]], [Sampling(3)], timeout_s=1), dispatcher=dispatcher)
    call.batch_line = LineTry(BATCH, line_id(BATCH, 7), 1)
    with pytest.raises(Cancelled):
        async with call:
            stages = [Stage("decode", PoolId("p"), WorkerId(worker), 0)] if worker else []
            sent_requests[0].attempt = sent_requests[0].attempt.decided(stages, "", {}, behind=False)
            raise Cancelled
    assert outbox.add.call_count == records


def test_of_a_lines_whole_answers_that_of_the_latest_ticket_counts() -> None:
    """A batch worker that was paused, and taken for dead, ends what another one has answered by then."""
    plan = GenerationPlan("cmpl-", model(), [[1]], [Sampling(3)], timeout_s=1)

    def ended(id_: str, ticket: int, outcome: str, made: int) -> UsageRecord:
        call, line = GenerationBase(RequestId(id_), 1000.0, plan), LineTry(BATCH, line_id(BATCH, 7), ticket)
        return record_of(call, Used("m", 1, 0, made), NOBODY, outcome, (1.0, 2.0, 0.5), [], 0, line, id_)

    records = [ended("a", 1, "cancelled", 1), ended("c", 2, "ok", 3), ended("b", 1, "ok", 2)]
    rows = [(r.id, r.x_request_id, r.completion_tokens, r.batch) for r in latest(records)]
    assert rows == [("a", "a", 1, BATCH), ("batch_req_1_7", "c", 3, BATCH)]


@given(times, times, st.sampled_from(["1m", "1h", "1d"]), st.integers(1, 31))
def test_pages_of_buckets_cover_a_time_once_and_without_a_gap(start: int, length: int, width: Any, limit: int) -> None:
    end = start + 1 + length % 10_000_000
    first = bucket_page = buckets(start, end, width, limit, None)
    assert first.first <= start < first.first + first.width
    for _ in range(20):
        assert 1 <= bucket_page.number <= limit
        assert bucket_page.more == (bucket_page.end < end)
        if not bucket_page.more:
            assert bucket_page.end - bucket_page.width < end <= bucket_page.end
            break
        after = buckets(start, end, width, limit, f"page_{bucket_page.end}")
        assert after.first == bucket_page.end
        bucket_page = after


@pytest.mark.parametrize("page", ["", "page_", "page_7", "page_-3600", "3600", "page_999999999999"])
def test_a_page_that_no_answer_named_is_refused(page: str) -> None:
    with pytest.raises(RequestError, match="is not a 'next_page'"):
        buckets(0, 90_000, "1h", None, page)


def test_a_limit_that_openai_refuses_is_refused() -> None:
    with pytest.raises(RequestError, match=r"'limit' \(32\) has to be from 1 to 31"):
        buckets(0, 90_000, "1d", 32, None)


def test_lines_of_all_batches_are_one_result() -> None:
    bucket_page = buckets(0, 7200, "1h", None, None)
    sums = {"requests": 1, "prompt_tokens": 5, "cached_tokens": 1, "completion_tokens": 2}
    rows = [sums | {"hour": iso(3600), "batch": batch} for batch in ("", "batch_1", "batch_2")]
    empty, bucket = page_of(bucket_page, ["batch"], rows)["data"]
    assert empty["results"] == []
    assert [(r["batch"], r["input_tokens"], r["num_model_requests"]) for r in bucket["results"]] == [
        (False, 5, 1),
        (True, 10, 2),
    ]


def test_a_query_is_no_wider_than_what_is_asked() -> None:
    bucket_page = buckets(1000, 8000, "1h", None, None)
    query = query_of(bucket_page, 1000, 8000, ["model", "user_id"])
    assert (query.since, query.until, query.by) == (1000, 8000, ("hour", "model"))


def test_a_moment_is_seconds_or_a_date_of_utc() -> None:
    assert moment("1751328000", "from") == moment("2025-07-01", "from") == moment("2025-07-01T02:00:00+02:00", "from")
    for bad in ("yesterday", "2025-13-01", "-1", "1e9", "9" * 400, "9" * 19, "0001-01-01", "1969-12-31"):
        with pytest.raises(RequestError, match="has to be seconds since the epoch, or a date"):
            moment(bad, "from")


def test_a_period_ends_after_it_begins() -> None:
    assert period("", "", 100 * 86_400.0)[1] - period("", "", 100 * 86_400.0)[0] == 30 * 86_400
    with pytest.raises(RequestError, match=r"'from' .* has to be before 'to'"):
        period("2025-07-02", "2025-07-01")
    for end in ("0.5", "1970-01-02", str(LATEST), "9999-12-31"):
        assert all(iso(at) for at in period("", end)), "any that is taken can be shown"


def test_a_page_that_is_no_time_is_refused() -> None:
    for page in ("page_", "page_x", "page_1.5", "page_" + "9" * 5000, "page_" + "٣" * 30):
        with pytest.raises(RequestError, match="'page'"):
            buckets(0, 86_400, "1m", None, page)


def test_groups_are_known_names() -> None:
    assert grouped_by("hour, tenant") == ("tenant", "hour")
    with pytest.raises(RequestError, match="'group_by' has 'team': there are tenant, key"):
        grouped_by("team")


def test_prometheus_names_so_many_tenants_and_counts_the_others_together() -> None:
    meters, names = TenantMeters(most=2), [f"bounded-{i}" for i in range(5)]
    for name in names:
        meters.ended(record(tenant=name))
    meters.ended(record(tenant=names[0], outcome="cancelled"))
    tenants = {s.labels["tenant"] for metric in TENANT_REQUESTS.collect() for s in metric.samples}
    assert {*names, OTHER} & tenants == {names[0], names[1], OTHER}
    assert TENANT_TOKENS.labels(OTHER, "completion")._value.get() == 15
    assert TENANT_REQUESTS.labels(names[0], "failed")._value.get() == 1


def test_no_text_of_a_client_is_a_formula_in_a_spreadsheet() -> None:
    out = io.StringIO()
    write_csv([[{"x_request_id": "=1+1", "requests": -1}]], ["x_request_id", "requests"], out)
    assert next(csv.DictReader(io.StringIO(out.getvalue()))) == {"x_request_id": "'=1+1", "requests": "-1"}
