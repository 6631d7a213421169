"""A batch's next step, its window, its schedule and its webhook."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from openai import OpenAI

from app.batch.batch_store import MOST_BREAKS, BatchLoad
from app.batch.next_step import after_break, due
from app.batch.records import Batch, BatchOrder
from app.batch.schedule import beat_schedule
from app.batch.window import read_window
from app.errors import SettingsError
from app.ids import ApiId, BatchId, FileId
from app.webhooks.signature import signature
from app.webhooks.webhook import TRIES_AFTER_S, event
from tests.refusals import refused

ORDER = BatchOrder(BatchId("batch_1"), "", "/v1/completions", FileId("file-1"), "24h", 1000, 2000)
NONE = BatchLoad(0, 0, None)
BUSY = BatchLoad(0, 0, ApiId("w"))


@pytest.mark.parametrize(
    ("status", "load", "now", "next_"),
    [
        ("validating", NONE, 1500, "begin"),
        ("validating", BUSY, 1500, None),
        ("validating", BUSY, 2000, "expire"),
        ("in_progress", BatchLoad(3, 0, None), 1500, "send"),
        ("in_progress", BatchLoad(0, 1, None), 1500, "send"),
        ("in_progress", NONE, 1500, "complete"),
        ("in_progress", BatchLoad(3, 2, None), 2000, "expire"),
        ("finalizing", BatchLoad(3, 1, None), 2500, "send"),
        ("finalizing", BatchLoad(3, 0, None), 2500, "finish"),
        ("cancelling", BatchLoad(3, 0, ApiId("w")), 1500, None),
        ("cancelling", NONE, 1500, "finish"),
        ("completed", NONE, 1500, "finish"),
    ],
)
def test_what_is_next(status: str, load: BatchLoad, now: float, next_: str | None) -> None:
    assert due(replace(Batch(ORDER), status=status), load, now, webhook=False) == next_


def test_an_ended_batch_is_left_once_it_is_cleaned_and_the_webhook_told_or_given_up() -> None:
    ended_batch = replace(Batch(ORDER), status="completed", cleaned=True)
    assert due(ended_batch, NONE, 1500, webhook=False) == "leave"
    assert due(ended_batch, NONE, 1500, webhook=True) == "tell"
    assert due(replace(ended_batch, tries=1, tell_at=1600), NONE, 1500, webhook=True) is None
    assert due(replace(ended_batch, tries=1, tell_at=1600), NONE, 1600, webhook=True) == "tell"
    assert due(replace(ended_batch, told=True, tries=1), NONE, 1600, webhook=True) == "leave"
    assert due(replace(ended_batch, tries=len(TRIES_AFTER_S) + 1), NONE, 1e9, webhook=True) == "leave"


def test_parts_are_cleaned_up_some_time_after_the_end_and_the_webhook_is_told_at_once() -> None:
    """A Redis that comes back without its last second has the files made once more."""
    ended_batch = replace(Batch(ORDER), status="expired", expired_at=1500)
    assert due(ended_batch, NONE, 1501, webhook=False) is None
    assert due(ended_batch, NONE, 1501, webhook=True) == "tell"
    assert due(replace(ended_batch, told=True), NONE, 1501, webhook=True) is None
    assert due(replace(ended_batch, told=True), NONE, 1520, webhook=True) == "finish"
    assert due(replace(ended_batch, tell_at=1600), BUSY, 1520, webhook=True) is None
    assert due(replace(ended_batch, tell_at=1600, cleaned=True), NONE, 1520, webhook=True) is None


def test_the_answers_are_given_to_who_waits_as_long_as_somebody_can_wait() -> None:
    waiting = replace(Batch(replace(ORDER, waits="{}")), status="completed", completed_at=1500, cleaned=True)
    assert due(waiting, NONE, 1501, webhook=True) == "tell"
    assert due(replace(waiting, tries=1, tell_at=1600), NONE, 1501, webhook=True) == "give"
    assert due(waiting, NONE, 1501, webhook=False) == "give"
    assert due(replace(waiting, given=True), NONE, 1502, webhook=False) == "leave"
    assert due(waiting, NONE, 1500 + 86_400, webhook=False) == "leave"


@pytest.mark.parametrize(
    ("status", "last"),
    [("validating", "failed"), ("finalizing", "failed"), ("cancelling", "failed"), ("completed", None)],
)
def test_what_breaks_is_counted_and_the_fifth_time_is_the_last(status: str, last: str | None) -> None:
    """A batch that has ended keeps its status: it is not cleaned up any more."""
    batch = replace(Batch(ORDER), status=status)
    for times in range(1, MOST_BREAKS):
        assert after_break(replace(batch, broke=times - 1), 1500) == {"broke": times}
    fields = after_break(replace(batch, broke=MOST_BREAKS - 1), 1500)
    assert next(iter(fields)) == ("status" if last else "cleaned")
    assert (fields.get("status"), fields.get("failed_at")) == (last, 1500 if last else None)


@pytest.mark.parametrize(("window", "seconds"), [("24h", 86_400), ("90m", 5400), ("1s", 1), ("30d", 2_592_000)])
def test_windows(window: str, seconds: int) -> None:
    assert read_window(window) == seconds


@pytest.mark.parametrize("window", ["", "24", "h", "0h", "-1h", "31d", "1w", "24 h", "1.5h", "９h"])
def test_what_is_no_window_is_refused_by_name(window: str) -> None:
    with refused("completion_window"):
        read_window(window)


def test_a_schedule_is_celerys(tmp_path: Path) -> None:
    path = tmp_path / "schedule.yaml"
    path.write_text("nightly: {cron: '0 2 * * *', file: in/a.jsonl, endpoint: /v1/completions, completion_window: 8h}")
    entry = beat_schedule(path)["nightly"]
    assert entry["task"] == "app.tasks.batch.submit"
    assert (entry["args"], entry["schedule"].hour) == (["in/a.jsonl", "/v1/completions", "8h", None], {2})
    assert entry["schedule"].minute == {0}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("n: {cron: 'never', file: a, endpoint: /v1/completions}", "n.cron: 'never'"),
        ("n: {cron: '0 2 * * *', file: a, endpoint: /v1/images}", "/v1/images"),
        ("n: {cron: '0 2 * * *', file: a, endpoint: /v1/completions, completion_window: 1w}", "1w"),
        ("n: {cron: '0 2 * * *', file: a, endpoint: /v1/completions, more: 1}", "n.more"),
        ("n: [", "not YAML"),
        ("n: {metadata: {since: !!int x}}", "not YAML"),
    ],
)
def test_a_schedule_that_does_not_parse_names_key_and_value(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "schedule.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as exc:
        beat_schedule(path)
    assert "schedule.yaml" in exc.value.message
    assert named in exc.value.message


def test_openais_client_takes_a_webhook_for_genuine_and_no_other() -> None:
    import time

    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = event("batch.completed", "batch_1", 1500)
    now = int(time.time())
    headers = {
        "webhook-id": "wh_1", "webhook-timestamp": str(now), "webhook-signature": signature(secret, "wh_1", now, body),
    }  # fmt: skip
    client = OpenAI(api_key="x", webhook_secret=secret)
    webhook_event = client.webhooks.unwrap(body.decode(), headers)
    assert (webhook_event.type, webhook_event.data.id) == ("batch.completed", "batch_1")
    with pytest.raises(Exception, match="signature"):
        client.webhooks.unwrap(body.decode().replace("batch_1", "batch_2"), headers)
