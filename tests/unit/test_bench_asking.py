"""Parts that benchmarks share: turns of two sides, processes that answer by lines, and the events of a stream."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.bench.events import cached_of, events
from ops.bench.loop import watched
from ops.bench.piped import in_turns, piped
from ops.bench.processes import Unavailable, finished, side_by_side

ECHO = """
import sys
print('vLLM says hello')
print('ready')
for line in sys.stdin:
    print('noise')
    print('[' + line)
"""


def test_neither_side_is_always_the_first_and_the_warm_up_does_not_count() -> None:
    order: list[tuple[str, int]] = []
    sides = [lambda turn, name=name: order.append((name, turn)) or (name, turn) for name in ("one", "other")]
    pairs = in_turns(2, *sides, lambda _: None)
    assert pairs == [(("one", 1), ("other", 1)), (("one", 2), ("other", 2))]
    assert [name for name, _ in order] == ["other", "one", "one", "other", "other", "one"]
    order.clear()
    assert in_turns(1, *sides, lambda _: None, warm_up=False) == pairs[:1]
    assert order == [("one", 1), ("other", 1)]


def test_a_process_answers_each_line_and_is_killed_in_the_end(tmp_path: Path) -> None:
    with piped([sys.executable, "-u", "-c", ECHO], tmp_path / "log") as process:
        assert process.ask("a", "[") == "[a\n"
        assert process.ask("b", "[") == "[b\n"


def test_a_process_that_ends_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no weights')"]
    with pytest.raises(Unavailable, match="no weights"), piped(command, tmp_path / "log"):
        pass
    with pytest.raises(Unavailable, match=r"the load failed: log: no weights"):
        finished(command, tmp_path / "log", 30, "the load")
    with pytest.raises(Unavailable, match="the load took over 1 s"):
        finished([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", 1, "the load")


def test_processes_side_by_side_tell_numbers(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="a process of no_such_module failed"):
        side_by_side("no_such_module", [(1,)], tmp_path, 30)


def stream(*lines: str, status: int = 200) -> Iterator[dict[str, object]]:
    body = "".join(f"{line}\n\n" for line in lines)
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    with httpx.Client(transport=transport) as client, client.stream("GET", "http://a/v1/completions") as answer:
        yield from events(answer)


def test_a_streams_events_are_read_to_its_end() -> None:
    assert list(stream('data: {"a": 1}', ": a comment", 'data: {"a": 2}', "data: [DONE]")) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("lines", "status", "why"),
    [
        (['data: {"a": 1}'], 200, "broke off"),
        (['data: {"error": "the worker died"}'], 200, "the worker died"),
        (["no room"], 429, "429.*no room"),
    ],
)
def test_a_stream_that_is_no_whole_answer_measures_nothing(lines: list[str], status: int, why: str) -> None:
    with pytest.raises(Unavailable, match=f"/v1/completions: .*{why}"):
        list(stream(*lines, status=status))


def test_cached_tokens_are_none_where_nothing_tells_of_them() -> None:
    assert cached_of({"prompt_tokens_details": {"cached_tokens": 3}}) == 3
    assert cached_of({"prompt_tokens_details": None}) == cached_of({}) == 0


async def test_a_loop_that_is_held_is_late() -> None:
    async def hold() -> str:
        await asyncio.sleep(0)
        time.sleep(0.05)  # noqa: ASYNC251 (this is what is measured)
        return "over"

    result, stall_s = await watched(hold(), 0.001)
    assert result == "over"
    assert stall_s >= 0.045
