"""The trace format: what is refused, and by which line."""

import gzip
from pathlib import Path

import pytest

from app.cli.trace import BadTrace, Request, read_trace, write_trace

_GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    requests = [Request(600, 5, 0, [0, 1], 7), Request(10, 0, 31, [2])]
    write_trace(tmp_path / name, requests)
    assert read_trace(tmp_path / name) == requests


def test_requests_of_a_session_may_have_a_delay_instead_of_a_time_and_unknown_fields_are_ignored(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"session_id": 0, "input_length": 5, "output_length": 5, "timestamp": 721, "tool": 1}\n\n'
        '{"session_id": 0, "input_length": 9, "output_length": 5, "delay": 250}\n'
    )
    assert [(r.timestamp, r.delay) for r in read_trace(path)] == [(721, None), (None, 250)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not JSON", "malformed"),
        ('{"timestamp": 0, "input_length": 600}', "output_length"),
        ('{"timestamp": 0, "input_length": 600, "output_length": "5"}', "int"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5}', "input_length"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1]}', "2 `hash_ids`, not 1"),
        ('{"timestamp": -1, "input_length": 600, "output_length": 5}', "negative"),
        ('{"input_length": 600, "output_length": 5}', "timestamp"),
        ('{"session_id": 9, "delay": 1, "input_length": 600, "output_length": 5}', "no earlier request"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": ["\xff"]}', "int"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{_GOOD}\n{_GOOD}\n{line}\n{_GOOD}\n")
    with pytest.raises(BadTrace, match=r"trace\.jsonl, line 3: ") as error:
        read_trace(path)
    assert why in str(error.value)


def test_a_file_that_is_cut_off_missing_or_empty_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(f"{_GOOD}\n".encode() * 1000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jsonl").write_text("\n")
    for name in ("cut.jsonl.gz", "missing.jsonl", "empty.jsonl"):
        with pytest.raises(BadTrace, match=name):
            read_trace(tmp_path / name)
