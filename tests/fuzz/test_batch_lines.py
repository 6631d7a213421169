"""Lines of a batch's input: any line costs itself only. The folder is real, and checks are the endpoints'."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch import paths as places
from app.batch.records import BatchLine, BatchOrder, Result, decode_part, decode_results
from app.batch.storage import Storage
from app.endpoint_registry import ENDPOINTS
from app.ids import BatchId, FileId
from app.schemas.validation import parse
from tests.fuzz.damage import damaged
from tests.fuzz.examples import examples
from workers.batch.input_splitter import split_input

CHAT = "/v1/chat/completions"
ORDER = BatchOrder(BatchId("batch_1"), "", CHAT, FileId("file-1"), "24h", 0, 86_400)
MAX_LINE = 200_000


def request(i: int) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    return json.dumps({"custom_id": f"id-{i}", "method": "POST", "url": CHAT, "body": body}).encode()


def with_seed(value: str) -> bytes:
    return request(9).replace(b'"model"', f'"seed": {value}, "model"'.encode())


HOSTILE = {
    "a number that is none": with_seed("NaN"),
    "an infinite number": with_seed("-Infinity"),
    "5,000 digits": with_seed("1" * 5000),
    "a number of 70 bits": with_seed(str(2**70)),
    "half a surrogate pair": request(9).replace(b"hello", b"\\ud800"),
    "half a surrogate pair as an id": request(9).replace(b"id-9", b"\\udfff"),
    "a NUL": request(9).replace(b"hello", b"\x00"),
    "no UTF-8": request(9).replace(b"hello", b"\xff\xfe"),
    "UTF-16": request(9).decode().encode("utf-16").replace(b"\n", b""),
    "a NUL as a name": request(9).replace(b'"method"', b'"\\u0000": 1, "method"'),
    "one id twice in a line, another line's last": request(9).replace(b'"id-9"', b'"id-9", "custom_id": "id-1"'),
    "200 levels": with_seed('{"a":' * 200 + "1" + "}" * 200),
    "300 levels": with_seed('{"a":' * 300 + "1" + "}" * 300),
    "300 levels of lists": with_seed("[" * 300 + "]" * 300),
    "300 levels in an unknown field": request(9).replace(b'"method"', b'"x": %s, "method"' % (b"[" * 300 + b"]" * 300)),
    "1,000 open braces": b'{"a":' * 1000,
    "100,000 open brackets": b"[" * 100_000,
    "a string": b'"id"',
    "a number": b"0",
    "null": b"null",
    "an empty object": b"{}",
    "one byte": b"\x00",
    "a byte order mark within the file": b"\xef\xbb\xbf" + request(9),
    "too long": request(9).replace(b"hello", b"x" * MAX_LINE),
    "a name of 100,000 characters": request(9).replace(b'"model"', b'"%s": 1, "model"' % (b"x" * 100_000)),
    "one unknown field 2,000 times": request(9).replace(b'"model"', b'"x":1,' * 2000 + b'"y": 1, "model"'),
}  # fmt: skip


def check(body: bytes) -> str:
    chat_request = parse(ENDPOINTS[CHAT].schema, body)
    chat_request.check()
    return chat_request.model


def cut_up(folder: str, lines: list[bytes]) -> tuple[list[BatchLine], list[Result]]:
    """The good lines and the broken ones."""
    storage = Storage(folder)
    storage.put("files/file-1", b"\n".join(lines))
    totals = split_input(storage, ORDER, "files/file-1", check, MAX_LINE, lambda: False)
    good = [
        line for i in range(totals.parts) for line in decode_part(storage.get(places.part(ORDER.id, i)) or b"").lines
    ]
    failures = decode_results(storage.get(places.broken(ORDER.id)) or b"")
    assert (len(good) + len(failures), len(failures)) == (totals.lines, totals.broken)
    return good, failures


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_line_costs_itself_only(tmp_path: Path, hostile: bytes) -> None:
    good, failures = cut_up(str(tmp_path), [request(1), hostile, request(2)])
    assert sorted(line.custom_id for line in good) == ["id-1", "id-2"]
    assert [result.number for result in failures] == [2]
    assert failures[0].problem is not None
    assert json.loads(failures[0].body)["error"]["code"] == failures[0].problem.code


@examples(100)
@given(st.lists(damaged(st.sampled_from([request(8), *HOSTILE.values()])), max_size=5))
def test_whatever_stands_beside_good_lines_they_are_in_a_part(beside: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        good, _ = cut_up(folder, [*(request(i) for i in (1, 2, 3)), *beside])
    assert {"id-1", "id-2", "id-3"} <= {line.custom_id for line in good}
