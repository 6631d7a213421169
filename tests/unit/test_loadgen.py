"""The load generator's prompts, and what it makes of answers as they arrive."""

from random import Random

import httptools
import pytest

from ops.bench.loadgen.__main__ import figures, spread
from ops.bench.loadgen.connection import Answer, Connection
from ops.bench.loadgen.load import Load, Share
from ops.bench.loadgen.prompts import KINDS, prompts

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"a \\"content\\":\\"b\\" c"}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


class Written:
    """A transport that nobody reads."""

    def __init__(self) -> None:
        self.is_closed = False

    def write(self, _: bytes) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


async def answer_to(*reads: bytes, stream: bool = True) -> Answer:
    connection = Connection(stream)
    connection._transport = Written()  # type: ignore[assignment]
    answer = connection.send(b"")
    for read in reads:
        connection.data_received(read)
    if not answer.done():
        connection.connection_lost(None)
    return await answer


async def test_texts_are_counted_by_read_and_tokens_are_the_servers() -> None:
    """The bytes may be cut anywhere; an empty text and a quoted one are none."""
    whole = HEAD + b"".join(map(chunked, (ROLE, TEXT, TEXT, USAGE, DONE))) + chunked(b"")
    for cut in range(1, len(whole)):
        answer = await answer_to(whole[:cut], whole[cut:])
        assert (answer.error, answer.events, answer.tokens, answer.prompt, answer.cached) == (None, 2, 2, 5, 3)
        assert answer.start <= answer.first <= answer.end
        assert sum(texts for _, texts in answer.times) == 2


@pytest.mark.parametrize(("reads", "error"), [
    ([HEAD + chunked(ROLE) + chunked(DONE) + chunked(b"")], "a stream without text"),
    ([HEAD + chunked(TEXT) + chunked(b'data: {"error":{"code":"no_worker"}}\n\n') + chunked(b"")], "no_worker"),
    ([b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nfull"], "status 429: full"),
    ([HEAD + chunked(TEXT)], "the connection was closed"),
    ([b"what?"], "no HTTP"),
])  # fmt: skip
async def test_an_answer_that_is_none_is_an_error(reads: list[bytes], error: str) -> None:
    answer = await answer_to(*reads)
    assert error in (answer.error or "")


async def test_a_whole_answer_has_the_tokens_of_its_usage() -> None:
    body = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}'
    answer = await answer_to(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body), stream=False)
    assert (answer.error, answer.tokens, answer.prompt, answer.events) == (None, 4, 7, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_the_same_for_a_seed(kind: str) -> None:
    once, again, other = (prompts(kind, 8, Random(seed), 20, 2, 3) for seed in (1, 1, 2))  # type: ignore[arg-type]
    assert once == again
    assert (once != other) == (kind != "short")
    assert len(once) == 8


def test_prompts_begin_alike_as_far_as_their_kind_says() -> None:
    unique = prompts("unique", 50, Random(1), 200, 0, 0)
    assert len({" ".join(text.split()[:8]) for text in unique}) == 50
    groups = prompts("prefix", 50, Random(1), 200, 5, 20)
    assert len({" ".join(text.split()[:200]) for text in groups}) == 5
    assert len(set(groups)) == 50
    assert {len(text.split()) for text in groups} == {220}


def test_figures_are_those_of_all_processes_together() -> None:
    load = Load(base_url="http://h:1", model="m", stream=True)
    first, second = Share(0.0, 2.0), Share(1.0, 4.0)
    first.add(Answer(0.0, 1.0, 2.0, tokens=3, events=3, prompt=10, cached=5, times=[(1.0, 1), (2.0, 2)]))
    second.add(Answer(1.0, 1.5, 4.0, tokens=1, events=1, prompt=10, times=[(1.5, 1)]))
    second.add(Answer(1.0, error="refused"))
    line = figures(load, [first, second])
    assert (line["ok"], line["errors"], line["first_error"], line["wall_s"]) == (2, 1, "refused", 4.0)
    assert (line["out_tokens"], line["tok_s"], line["cached_ratio"]) == (4, 1.0, 0.25)
    assert line["itl_ms"] == {"mean": 500.0, "p50": 1000.0, "p90": 1000.0, "p99": 1000.0, "max": 1000.0}
    assert line["ttft_ms"]["max"] == 1000.0
    assert spread([]) is None


def test_a_request_is_whole_http() -> None:
    class Request:
        body = b""

        def on_body(self, body: bytes) -> None:
            self.body += body

    load = Load(base_url="http://127.0.0.1:9", model="m", extra_body='{"top_k": 1}', stream=True)
    parser = httptools.HttpRequestParser(request := Request())
    parser.feed_data(load.payloads(1)[0])
    assert parser.get_method() == b"POST"
    assert b'"top_k": 1' in request.body
    assert b'"include_usage": true' in request.body
