"""Message Batches in Anthropic's shape, whatever has become of the batch."""

import re
from typing import Any

import orjson
import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from msgspec.structs import replace
from pydantic import TypeAdapter

from app.anthropic import answer_types
from app.anthropic.message_batches import as_object, failures, input_file, results
from app.batch.input_line import read_line
from app.batch.records import Batch, BatchOrder, Problem, Result
from app.errors import BodyTooLarge, RequestError, XylemError
from app.ids import BatchId, FileId
from workers.batch.result_files import line_of

ORDER = BatchOrder(BatchId("msgbatch_1"), "", "/v1/messages", FileId("file-1"), "24h", 100, 86_500, requests=10)
BATCH = Batch(ORDER, "in_progress", in_progress_at=101)
NOTHING = {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}


def shown(now: float = 300, **fields: Any) -> dict[str, Any]:
    batch = as_object(replace(BATCH, **fields), "http://host", now, keep_s=1000)
    TypeAdapter(answer_types.MessageBatch).validate_python(batch, strict=True)
    MessageBatch.model_validate(batch)
    return batch


@pytest.mark.parametrize(("fields", "status", "counts"), [
    ({"status": "validating"}, "in_progress", {"processing": 10}),
    ({"completed": 4, "failed": 1}, "in_progress", {"processing": 10}),
    ({"status": "finalizing", "ending": "expired"}, "in_progress", {"processing": 10}),
    ({"status": "cancelling", "cancelling_at": 200}, "canceling", {"processing": 10}),
    ({"status": "completed", "completed_at": 200, "completed": 7, "failed": 3}, "ended",
     {"succeeded": 7, "errored": 3}),
    ({"status": "cancelled", "cancelled_at": 200, "completed": 5, "failed": 5, "not_executed": 4}, "ended",
     {"succeeded": 5, "errored": 1, "canceled": 4}),
    ({"status": "expired", "expired_at": 200, "completed": 1, "failed": 9, "not_executed": 9}, "ended",
     {"succeeded": 1, "expired": 9}),
    ({"status": "failed", "failed_at": 200}, "ended", {"errored": 10}),
])  # fmt: skip
def test_each_request_counts_once_and_as_processing_until_all_have_ended(
    fields: dict[str, Any], status: str, counts: dict[str, int]
) -> None:
    batch = shown(**fields)
    assert (batch["processing_status"], batch["request_counts"]) == (status, NOTHING | counts)
    assert (batch["ended_at"], batch["results_url"]) == (
        ("1970-01-01T00:03:20Z", "http://host/v1/messages/batches/msgbatch_1/results") if status == "ended"
        else (None, None)
    )  # fmt: skip
    assert batch["archived_at"] is None


def test_it_is_archived_when_its_results_are_gone() -> None:
    batch = shown(now=1200, status="completed", completed_at=200, completed=10)
    assert (batch["archived_at"], batch["results_url"]) == ("1970-01-01T00:20:00Z", None)


def test_a_result_says_how_its_request_ended() -> None:
    """The lines are those that batch workers write for all kinds of batches."""
    error_body = orjson.dumps({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "x"}})
    lines = [
        Result(1, "a", 200, "r", orjson.dumps({"type": "message"})),
        Result(2, "b", 404, "", error_body, Problem("model_not_found", "no")),
        Result(3, "c", 0, "", b"{}", Problem("batch_cancelled", "too late")),
        Result(4, "d", 0, "", b"{}", Problem("batch_expired", "too late")),
        Result(5, "e", 0, "", b"{}", Problem("internal_error", "lost")),
    ]
    entries = [orjson.loads(raw) for raw in results(line_of(ORDER.id, line) for line in lines)]
    for line in entries[1:]:
        TypeAdapter(answer_types.MessageBatchResult).validate_python(line, strict=True)
        MessageBatchIndividualResponse.model_validate(line)
    assert [line["custom_id"] for line in entries] == ["a", "b", "c", "d", "e"]
    assert [line["result"]["type"] for line in entries] == ["succeeded", "errored", "canceled", "expired", "errored"]
    assert entries[0]["result"]["message"] == {"type": "message"}
    assert entries[1]["result"]["error"]["error"] == {"type": "not_found_error", "message": "no"}
    assert entries[4]["result"]["error"]["error"] == {"type": "api_error", "message": "lost"}


def test_a_batch_that_failed_as_a_whole_tells_each_request_why() -> None:
    lines, count = input_file(b'{"requests": [{"custom_id": "a", "params": {}}, {"custom_id": "b", "params": {}}]}')
    problems = [Problem("too_many_lines", "Too many.")]
    failed_batch = replace(BATCH, status="failed", in_progress_at=None, problems=problems)
    entries = [orjson.loads(raw) for raw in failures(lines.splitlines(), failed_batch)]
    assert [line["custom_id"] for line in entries] == ["a", "b"]
    assert count == 2
    assert {line["result"]["error"]["error"]["message"] for line in entries} == {"Too many."}


def test_a_result_has_the_numbers_that_the_model_wrote() -> None:
    """An integer over 64 bits became a fraction: it may be the argument of a call."""
    body = b'{"type":"message","content":[{"type":"tool_use","input":{"n":%b,"x":1.50}}]}' % (b"1234567890" * 3)
    (raw,) = results([line_of(ORDER.id, Result(1, "a", 200, "r", body))])
    assert raw == b'{"custom_id":"a","result":{"type":"succeeded","message":%b}}\n' % body


def test_a_batch_that_failed_names_requests_whose_params_cannot_be_read() -> None:
    """Older versions took such params into their files. Results were a 500 for as long as they were kept."""
    lines = [
        b'{"custom_id":"%b","method":"POST","url":"/v1/messages","body":%b}\n' % (name, params)
        for name, params in ((b"a", b'{"temperature": 1e999}'), (b"b", b"[" * 5000 + b"]" * 5000))
    ]
    entries = [orjson.loads(raw) for raw in failures(lines, replace(BATCH, status="failed"))]
    assert [line["custom_id"] for line in entries] == ["a", "b"]
    assert {line["result"]["type"] for line in entries} == {"errored"}


@pytest.mark.parametrize(("params", "error", "words"), [
    (b'{"temperature": 1e999}', RequestError, "infinit"),
    (b'{"n": %b}' % (b"9" * 400), RequestError, "infinit"),
    (b'{"n": %b, "x": %b}' % (b"9" * 30, b"[" * 300 + b"]" * 300), RequestError, "recursion"),
    (b'{"x": [%b]}' % b",".join([b"{}"] * 50_000), BodyTooLarge, "lists and objects"),
])  # fmt: skip
def test_params_that_no_worker_can_read_are_refused_by_their_place(
    params: bytes, error: type[XylemError], words: str
) -> None:
    """The batch lost the whole line, and with it the custom_id of its result."""
    good = b'{"custom_id": "a", "params": {}}'
    with pytest.raises(error, match=words) as refusal:
        input_file(b'{"requests": [%b, {"custom_id": "b", "params": %b}]}' % (good, params))
    assert refusal.value.message.startswith("requests.1.params")
    assert refusal.value.param in ("requests.1.params", None)


def test_params_go_into_one_line_as_they_are() -> None:
    """Numbers beyond ours stay too, and the layout of the body doesn't matter."""
    params = b'{"model": "m",\r\n\t"x": 18446744073709551616.50,\n "t": "a\\nb \xc3\xa9"}'
    lines, count = input_file(b'{"requests": [{"params": %b, "custom_id": "a"}]}' % params)
    assert (count, lines.count(b"\n"), lines.count(b"\r")) == (1, 1, 0)
    line, body = read_line(lines, 1, "/v1/messages", set())
    assert (line.custom_id, body["t"]) == ("a", "a\nb é")
    assert b"18446744073709551616.50" in lines


@pytest.mark.parametrize(("raw", "words"), [
    (b"{", "not valid JSON"),
    (b"[]", "Expected `object`"),
    (b'{"requests": [{"custom_id": "a", "params": {"x": "\xff"}}]}', "not valid JSON"),
    (b'{"requests": null}', "requests: "),
    (b'{"more": 1}', "more: "),
    (b'{"requests": [{"custom_id": 5, "params": {}}]}', "requests.0.custom_id: "),
    (b'{"requests": [{"custom_id": "a\\n", "params": {}}]}', "requests.0.custom_id: "),  # it would end the line
    (b'{"requests": [{"custom_id": "a", "params": {"x": %b}}]}' % (b"[" * 50_000 + b"]" * 50_000), "nested too deep"),
    (b'{"requests": [%b]}' % b",".join([b'{"custom_id": "a", "params": {}}'] * 50_001), "requests: "),
    (b'{"requests": [%b]}' % b",".join([b'{"custom_id": "a", "params": {}}'] * 100_001), "at most 50000 requests"),
])  # fmt: skip
def test_a_body_that_is_no_batch_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        input_file(raw)
