"""Splitting of an input file into parts, and of their results into an output and an error file, in a real folder."""

import io
import json
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from app.batch import paths as places
from app.batch.fair_share import LINES
from app.batch.records import Batch, BatchOrder, Result, decode_part
from app.batch.storage import Storage
from app.errors import ModelNotFound
from app.ids import BatchId, FileId
from app.messages.wire import encode
from workers.batch.input_splitter import SplitInput, Unusable, numbered, split_input
from workers.batch.result_files import write_result_files

CHAT = "/v1/chat/completions"
MINE = partial(bool, 1)  # the batch is still to be finished by who asks
ORDER = BatchOrder(BatchId("batch_1"), "", CHAT, FileId("file-1"), "24h", 0, 86_400)


def check(body: bytes) -> str:
    model: str = json.loads(body)["model"]
    if model not in ("m", "n"):
        raise ModelNotFound("no such model", param="model")
    return model


def ask_anything(body: bytes) -> str:
    raise ModelNotFound(f"The model '{json.loads(body)['model']}' does not exist.", param="model")


def request(i: int, text: str = "hello", model: str = "m") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return json.dumps({"custom_id": f"id-{i}", "method": "POST", "url": CHAT, "body": body})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def put(storage: Storage, lines: list[str]) -> None:
    storage.put("files/file-1", "\n".join(lines).encode())


def split(storage: Storage, lines: list[str], check: Callable[[bytes], str] = check, most: int = 10_000) -> SplitInput:
    put(storage, lines)
    return split_input(storage, ORDER, "files/file-1", check, most, lambda: False)


def parts(storage: Storage, count: int) -> list[Any]:
    return [decode_part(storage.get(places.part(ORDER.id, i)) or b"").lines for i in range(count)]


def test_every_line_is_in_one_part_or_broken_and_blank_ones_are_none(storage: Storage) -> None:
    lines = [request(i) for i in range(150)]
    lines[10], lines[20], lines[30] = "{broken", "", request(5)
    lines[40] = request(40, model="other")
    result = split(storage, lines)
    assert (result.lines, result.broken, result.model, result.parts) == (149, 3, "m", -(-146 // LINES))
    numbers = [line.number for part in parts(storage, result.parts) for line in part]
    assert sorted(numbers) == [n for n in range(1, 151) if n not in (11, 21, 31, 41)]


def test_lines_that_begin_alike_are_in_the_same_part(storage: Storage) -> None:
    result = split(storage, [request(i, f"Subject {i % 3}. " * 100 + str(i)) for i in range(3 * LINES)])
    all_parts = parts(storage, result.parts)
    subjects = [{json.loads(line.body)["messages"][0]["content"][:9] for line in part} for part in all_parts]
    assert [len(names) for names in subjects] == [1] * result.parts
    assert set().union(*subjects) == {f"Subject {i}" for i in range(3)}


def test_a_batch_is_for_one_model_and_lines_for_another_one_cost_themselves(storage: Storage) -> None:
    result = split(storage, [request(1, model="gone"), request(2), request(3, model="n"), request(4)])
    assert (result.lines, result.broken, result.model) == (4, 2, "m")
    assert [line.number for line in parts(storage, 1)[0]] == [2, 4]


def test_a_part_of_long_lines_has_few_of_them(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.batch.input_splitter._PART_BYTES", 1000)
    result = split(storage, [request(i, "x" * 300) for i in range(7)] + [request(7, "x" * 3000)])
    sizes = [len(part) for part in parts(storage, result.parts)]
    assert sum(sizes) == 8
    assert max(sizes) == 2
    assert sizes.count(1) >= 1


def test_an_empty_file_and_one_of_too_many_lines_are_unusable(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unusable, match="no line"):
        split(storage, ["", "  "])
    monkeypatch.setattr("workers.batch.input_splitter.MAX_LINES", 3)
    with pytest.raises(Unusable, match="at most 3"):
        split(storage, [request(i) for i in range(4)])


def test_blank_lines_are_bounded_too(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has room for hundreds of millions, which kept a batch worker busy for as long as it took."""
    monkeypatch.setattr("workers.batch.input_splitter._MOST_BLANK", 3)
    assert split(storage, ["", request(1), "", " ", request(2)]).lines == 2
    with pytest.raises(Unusable, match="at most 3 blank lines") as error:
        split(storage, ["", request(1), "", " ", "", request(2)])
    assert (error.value.problem.code, error.value.problem.line) == ("too_many_blank_lines", 5)


def test_a_split_is_stopped_among_blank_lines_too(storage: Storage) -> None:
    put(storage, [""] * 1000)
    countdown = iter(range(10))
    with pytest.raises(InterruptedError):
        split_input(storage, ORDER, "files/file-1", check, 10_000, lambda: next(countdown, None) is None)


def test_a_line_that_is_too_long_costs_itself_only(storage: Storage) -> None:
    result = split(storage, [request(1), request(2, "x" * 5000), request(3)], most=1000)
    assert (result.lines, result.broken) == (3, 1)
    assert [line.number for line in parts(storage, 1)[0]] == [1, 3]


def test_what_is_said_of_broken_lines_is_short_whatever_they_say(storage: Storage) -> None:
    """The messages about all of them are held in memory."""
    long_field_lines = [request(i).replace('"method"', '"%s": 1, "method"' % ("x" * 100_000)) for i in range(9)]
    lines = [*long_field_lines, *(request(i, model="m" * 100_000) for i in range(9))]
    result = split(storage, lines, ask_anything, 10**6)
    assert (result.lines, result.broken) == (18, 18)
    assert len(storage.get(places.broken(ORDER.id)) or b"") < 18 * 5000


def test_a_byte_order_mark_before_the_first_line_is_none_of_it(storage: Storage) -> None:
    """Windows' editors write one."""
    storage.put("files/file-1", b"\xef\xbb\xbf" + request(1).encode() + b"\n" + request(2).encode())
    result = split_input(storage, ORDER, "files/file-1", check, 10_000, lambda: False)
    assert (result.lines, result.broken) == (2, 0)


def test_a_file_of_nothing_but_a_byte_order_mark_has_no_line(storage: Storage) -> None:
    storage.put("files/file-1", b"\xef\xbb\xbf\n")
    with pytest.raises(Unusable, match="no line"):
        split_input(storage, ORDER, "files/file-1", check, 10_000, lambda: False)


def test_a_split_that_is_stopped_raises_interrupted_error(storage: Storage) -> None:
    """A stop is no failure of the storage."""
    put(storage, [request(i) for i in range(150)])
    for looks in (1, 151):  # while it reads, and while it writes
        steps = iter(range(looks))
        with pytest.raises(InterruptedError):
            split_input(storage, ORDER, "files/file-1", check, 10_000, lambda steps=steps: next(steps, None) is None)


def test_of_a_long_line_no_more_is_read_than_may_be() -> None:
    file = io.BytesIO(b"a" * 1_000_000 + b"\nshort\n")
    assert [(number, len(raw)) for number, raw in numbered(file, 100)] == [(1, 101), (2, 6)]


def test_a_big_file_is_not_held_in_memory(storage: Storage) -> None:
    put(storage, [request(i, "word " * 2000) for i in range(2000)])  # 20 MB
    tracemalloc.start()
    result = split_input(storage, ORDER, "files/file-1", check, 100_000, lambda: False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result.lines, result.broken) == (2000, 0)
    assert peak < 5_000_000


def answered(i: int) -> Result:
    return Result(i, f"id-{i - 1}", 200, f"req-{i}", b'{"text":"hi"}', None, 10, 4, 3)


def test_the_files_have_each_line_once_wherever_its_result_lies(storage: Storage) -> None:
    result = split(storage, [request(i) for i in range(3 * LINES)] + ["{broken"])
    whole, half, none = parts(storage, 3)
    storage.put(places.answers(ORDER.id, 0), encode([answered(line.number) for line in whole]))
    results = {1: [answered(line.number) for line in half[:10]]}
    batch = Batch(ORDER, "finalizing", parts=result.parts, ending="expired")
    sums = write_result_files(storage, batch, lambda _id, part: results.get(part, []), MINE)
    assert (sums.completed, sums.failed) == (LINES + 10, LINES - 10 + LINES + 1)
    assert (sums.prompt, sums.cached, sums.completion) == tuple(n * (LINES + 10) for n in (10, 4, 3))
    output, errors = (
        [json.loads(raw) for raw in (storage.get(f"files/{places.file_of(ORDER.id, kind)}") or b"").splitlines()]
        for kind in ("output", "error")
    )
    ids = [line["custom_id"] for line in output + errors]
    assert sorted(filter(None, ids)) == sorted(f"id-{i}" for i in range(3 * LINES))
    assert len(ids) == 3 * LINES + 1
    assert output[0]["response"] == {
        "status_code": 200, "request_id": f"req-{whole[0].number}", "body": {"text": "hi"},
    }  # fmt: skip
    assert output[0]["error"] is None
    unasked_lines = [line for line in errors if line["custom_id"] == f"id-{none[0].number - 1}"]
    assert unasked_lines[0]["response"] is None
    assert unasked_lines[0]["error"]["code"] == "batch_expired"
    assert unasked_lines[0]["error"]["line"] == none[0].number


def test_each_line_is_one_for_every_reader_of_lines(storage: Storage) -> None:
    """Some take more characters than a line feed for a line's end: str.splitlines() does."""
    ends = "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0x2028, 0x2029]))
    split(storage, [request(1).replace("id-1", json.dumps(ends)[1:-1]), "{" + json.dumps(ends, ensure_ascii=False)])
    answer = replace(answered(1), custom_id=ends, body=orjson.dumps({"text": ends}))
    storage.put(places.answers(ORDER.id, 0), encode([answer]))
    write_result_files(storage, Batch(ORDER, "finalizing", parts=1, ending="completed"), lambda _id, _part: [], MINE)
    for kind in ("output", "error"):
        raw = (storage.get(f"files/{places.file_of(ORDER.id, kind)}") or b"").decode()
        lines = raw.splitlines()
        assert len(lines) == raw.count("\n") > 0
        assert all(json.loads(line) for line in lines)
        if kind == "output":
            assert json.loads(raw)["custom_id"] == json.loads(raw)["response"]["body"]["text"] == ends


def test_a_file_without_lines_is_not_there(storage: Storage) -> None:
    split(storage, [request(1)])
    storage.put(places.answers(ORDER.id, 0), encode([answered(1)]))
    batch = Batch(ORDER, "finalizing", parts=1, ending="completed")
    assert write_result_files(storage, batch, lambda _id, _part: [], MINE).errors == 0
    assert storage.get(f"files/{places.file_of(ORDER.id, 'error')}") is None


def test_making_the_files_once_more_changes_nothing(storage: Storage) -> None:
    split(storage, [request(1), "{"])
    storage.put(places.answers(ORDER.id, 0), encode([answered(1)]))
    batch = Batch(ORDER, "finalizing", parts=1, ending="completed")
    first = write_result_files(storage, batch, lambda _id, _part: [], MINE)
    content = storage.get(f"files/{places.file_of(ORDER.id, 'output')}")
    assert write_result_files(storage, batch, lambda _id, _part: [], MINE) == first
    assert storage.get(f"files/{places.file_of(ORDER.id, 'output')}") == content
