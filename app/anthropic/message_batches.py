"""Anthropic's Message Batches: their requests become the input file of a batch, and its results Anthropic's. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from json import JSONDecodeError
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import Meta, Raw, Struct
from pydantic import Field

from app import json_bytes
from app.anthropic.answer_types import Errored, MessageBatch, MessageBatchResult, RequestCounts, Result
from app.anthropic.error_body import body_of
from app.batch.input_line import MAX_LINES
from app.batch.records import LIVE, Batch
from app.errors import RequestError
from app.ids import BatchId
from app.schemas.body import Body, Query
from app.schemas.validation import check_values

MESSAGES = "/v1/messages"
PREFIX = "msgbatch_"  # of ids
WINDOW = "24h"
_MOST_VALUES = 2**18  # of one request's params
_ID = r"^[a-zA-Z0-9_-]{1,64}$"  # in pydantic; in Python, `$` also matches before a line break at the end
_PLACE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)  # of msgspec's errors
_NAME = re.compile(r"field `(.*)`$")
_INPUT_LINE = b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n'
_LINE_ID = re.compile(rb'\{"custom_id":"([^"]*)"')  # of such a line, whatever is in its body
_NotExecuted = Literal["canceled", "expired"]
# By the code of a line's error, and by the status of a batch: how requests ended that were not executed.
_NOT_EXECUTED: Mapping[str, _NotExecuted] = {"batch_cancelled": "canceled", "batch_expired": "expired"}
_ENDS: Mapping[str, _NotExecuted] = {"cancelled": "canceled", "expired": "expired"}


class BatchEntry(Body):
    custom_id: Annotated[str, Field(pattern=_ID)]
    params: dict[str, Any]  # of POST /v1/messages; JSON is checked at once, fields when the batch has begun


class MessageBatchRequest(Body):
    """A batch, for the document only: `input_file` builds what is in `params` of one request at a time, and not all."""

    requests: Annotated[list[BatchEntry], Field(min_length=1, max_length=MAX_LINES)]


class MessageBatchesQuery(Query):
    after_id: str | None = None
    before_id: str | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    beta: Literal["true"] | None = None  # which Anthropic's client sends for `client.beta`


class _Entry(Struct, forbid_unknown_fields=True):
    custom_id: Annotated[str, Meta(pattern=_ID.replace("$", r"\Z"))]
    params: Raw


class _Request(Struct, forbid_unknown_fields=True):
    requests: Annotated[list[_Entry], Meta(min_length=1, max_length=MAX_LINES)]


class _Response(Struct):
    status_code: int
    body: Raw  # as it is: orjson would make fractions of integers over 64 bits


class _Error(Struct):
    code: str
    message: str


class _Result(Struct):
    """A line of an output or error file."""

    custom_id: str | None
    response: _Response | None
    error: _Error | None


_decoder = msgspec.json.Decoder(_Request)
_result_decoder = msgspec.json.Decoder(_Result)


def input_file(raw: bytes) -> tuple[bytes, int]:
    """The input file of a batch for a body, and the number of its lines.

    Raises: RequestError that names the field; BodyTooLarge for `params` with too many values.
    """
    if raw.count(b'"custom_id"') > 2 * MAX_LINES:  # of which each request has one, and few have more
        raise RequestError(f"'requests': a batch has at most {MAX_LINES} requests.", param="requests")
    try:
        if not raw.isascii():
            raw.decode()  # of what is in `params`, the decoder looks at quotes and brackets only
        entries = _decoder.decode(raw).requests
    except msgspec.ValidationError as exc:
        raise _refused(str(exc)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RequestError(f"The body is not valid JSON: {exc}.") from None
    except RecursionError:
        raise RequestError("The body is nested too deep.") from None
    custom_ids: set[str] = set()
    lines: list[bytes] = []
    for number, entry in enumerate(entries):
        if entry.custom_id in custom_ids:
            words = f"Another request has the custom_id '{entry.custom_id}', too."
            raise _refused(f"{words} - at `$.requests[{number}].custom_id`")
        custom_ids.add(entry.custom_id)
        params = bytes(entry.params)
        if not params.startswith(b"{"):
            raise _refused(f"Expected `object` - at `$.requests[{number}].params`")
        lines.append(_input_line(number, entry.custom_id, params))
    return b"".join(lines), len(lines)


def _input_line(number: int, custom_id: str, params: bytes) -> bytes:
    """Raises: RequestError for `params` that no batch worker could read, and the line would lose its custom_id.

    And BodyTooLarge for too many values.
    """
    params = params.replace(b"\n", b" ").replace(b"\r", b" ")  # only ever between values
    check_values(params, _MOST_VALUES, f"requests.{number}.params")
    line = _INPUT_LINE % (custom_id.encode(), MESSAGES.encode(), params)
    try:
        json_bytes.loads(line)
    except ValueError as exc:
        what = exc.msg if isinstance(exc, JSONDecodeError) else str(exc)
        raise _refused(f"This is not valid JSON: {what} - at `$.requests[{number}].params`") from None
    return line


def _refused(words: str) -> RequestError:
    """Names the field as Anthropic does: `requests.0.custom_id`."""
    match = _PLACE.match(words)
    assert match is not None
    what, place = match[1], re.sub(r"\[(\d+)\]", r".\1", match[2] or "").lstrip(".")
    if name := _NAME.search(what):
        place = f"{place}.{name[1]}".lstrip(".")
    return RequestError(f"{place}: {what}" if place else what, param=place or None)


def as_object(batch: Batch, base: str, now: float, keep_s: float) -> MessageBatch:
    """`base`: the server's URL. `keep_s`: seconds for which results are kept after the batch's end."""
    order, has_ended = batch.order, batch.status not in LIVE
    archived_at = batch.ended_at + keep_s
    is_archived = has_ended and now >= archived_at
    return {
        "id": order.id,
        "type": "message_batch",
        "processing_status": "ended" if has_ended else "canceling" if batch.status == "cancelling" else "in_progress",
        "request_counts": _counts(batch),
        "created_at": _time(order.created),
        "expires_at": _time(order.expires),
        "ended_at": _time(batch.ended_at) if has_ended else None,
        "cancel_initiated_at": None if batch.cancelling_at is None else _time(batch.cancelling_at),
        "archived_at": _time(archived_at) if is_archived else None,
        "results_url": f"{base}{MESSAGES}/batches/{order.id}/results" if has_ended and not is_archived else None,
    }


def _counts(batch: Batch) -> RequestCounts:
    """All are processing until the whole batch has ended. The sum is always the number of its requests."""
    counts: RequestCounts = {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    requests = batch.order.requests
    if batch.status in LIVE:
        counts["processing"] = requests
    elif batch.status == "failed":
        counts["errored"] = requests
    else:
        counts["succeeded"], counts["errored"] = batch.completed, batch.failed - batch.not_executed
        if (kind := _ENDS.get(batch.status)) is None:
            counts["errored"] += batch.not_executed
        else:
            counts[kind] += batch.not_executed
    return counts


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def results(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Anthropic's results for lines of output and error files."""
    for line in lines:
        outcome = _result_decoder.decode(line)
        yield _line(outcome.custom_id or "", _result(outcome.response, outcome.error))


def _result(response: _Response | None, error: _Error | None) -> Result:
    if error is None:
        assert response is not None
        message: Any = orjson.Fragment(bytes(response.body))
        return {"type": "succeeded", "message": message}
    if (kind := _NOT_EXECUTED.get(error.code)) is not None:
        return {"type": kind}
    return _errored(500 if response is None else response.status_code, error.message)


def failures(lines: Iterable[bytes], batch: Batch) -> Iterator[bytes]:
    """The results of a batch that failed as a whole. `lines`: of its input file."""
    (message, *_) = [*(problem.message for problem in batch.problems), "The batch could not be processed."]
    result = _errored(400 if batch.in_progress_at is None else 500, message)
    for line in lines:
        match = _LINE_ID.match(line)
        yield _line(match[1].decode() if match else "", result)


def _errored(status: int, message: str) -> Errored:
    return {"type": "errored", "error": body_of(status, message)}


def _line(custom_id: str, result: Result) -> bytes:
    line: MessageBatchResult = {"custom_id": custom_id, "result": result}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def is_message_batch(batch: BatchId) -> bool:
    return batch.startswith(PREFIX)
