"""Records of requests, and the trace that `xylem record` makes of them."""

from random import Random

import pytest

from app.cli.recording import Received
from app.cli.trace import Request
from app.dispatch.observing.recorder import recorded
from app.ids import ApiId
from app.messages.job import Job
from app.messages.media import Media
from app.messages.recording import Recorded, RecordedBatch
from tests.jobs import job

SECRET = b"s" * 32
A, B = ApiId("a"), ApiId("b")
_random = Random(1)
TOKENS = [_random.randrange(50_000) for _ in range(2000)]


def blocks(of: Job, secret: bytes = SECRET, model: str = "m") -> list[bytes]:
    hashes = recorded(of, 0.0, [1], secret, model).blocks
    return [hashes[i : i + 8] for i in range(0, len(hashes), 8)]


@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (512, 1), (513, 2), (1024, 2), (2000, 4)])
def test_each_begun_block_has_a_digest(tokens: int, count: int) -> None:
    assert len(blocks(job(TOKENS[:tokens]))) == count


def test_prompts_share_the_digests_of_the_blocks_that_they_share_and_no_more() -> None:
    one = blocks(job(TOKENS))
    assert blocks(job([*TOKENS[:1100], 7, *TOKENS[1101:]]))[:2] == one[:2]
    assert not set(blocks(job([*TOKENS[:1100], 7, *TOKENS[1101:]]))[2:]) & set(one)
    assert blocks(job(TOKENS[:700]))[0] == one[0]
    assert blocks(job(TOKENS[:700]))[1] != one[1]  # a partial block is another one


@pytest.mark.parametrize(
    "other",
    [
        blocks(job(TOKENS), b"t" * 32),
        blocks(job(TOKENS), model="n"),
        blocks(job(TOKENS, cache_salt="tenant")),
        blocks(job(TOKENS, adapter="x@1")),
        blocks(job(TOKENS, media=[Media("image", "00", (9, 9), 0, 600)])),
    ],
)
def test_prompts_whose_kv_differs_share_nothing_and_neither_do_recordings(other: list[bytes]) -> None:
    assert not set(other) & set(blocks(job(TOKENS)))


def test_a_picture_differs_from_its_block_on_only() -> None:
    one, other = (blocks(job(TOKENS, media=[Media("image", sha, (9, 9), 600, 10)])) for sha in ("00", "01"))
    assert one[0] == other[0] == blocks(job(TOKENS))[0]
    assert not set(one[1:]) & set(other)


def record(name: str, came: float, answers: list[int], digests: str, session: bytes = b"") -> Recorded:
    return Recorded(name, came, 512 * len(digests), answers, b"".join(d.encode() * 8 for d in digests), session)


def batch(
    api: ApiId, *records: Recorded, total: int, unanswered: int = 0, running: int = 0, at: float = 0.0
) -> RecordedBatch:
    return RecordedBatch(api, list(records), total, unanswered, running, at)


def test_a_trace_is_in_the_order_of_arrival_with_a_line_for_each_choice_and_numbers_for_digests() -> None:
    collector = Received()
    collector.take(batch(A, record("2", 12.0, [7], "xz", b"sessionA"), record("3", 12.5, [5, 6], "w"), total=2), 0.0)
    collector.take(batch(B, record("1", 10.5, [4], "xy"), record("late", 99.0, [1], "q"), total=2), 0.0)
    assert list(collector.requests(10.0, 20.0)) == [
        Request(1024, 4, 500, [0, 1]),
        Request(1024, 7, 2000, [0, 2], 0),
        Request(512, 5, 2500, [3]),
        Request(512, 6, 2500, [3]),
    ]


def test_an_answer_that_another_replica_continued_is_one_request() -> None:
    collector = Received()
    collector.take(batch(A, record("r", 1.0, [40], "x"), total=1), 0.0)
    collector.take(batch(B, record("r", 1.0, [100], "x"), total=1), 0.0)
    collector.take(batch(B, record("r", 1.0, [30], "x"), total=2), 0.0)
    assert [r.output_length for r in collector.requests(0.0, 9.0)] == [100]


def test_what_a_replica_made_and_nobody_got_is_counted() -> None:
    collector = Received()
    collector.take(batch(A, record("1", 1.0, [1], "x"), total=1), 0.0)
    collector.take(batch(A, record("4", 2.0, [1], "x"), total=4, unanswered=3), 1.0)
    assert (len(collector), collector.lost, collector.unanswered) == (2, 2, 3)


def test_the_end_waits_for_what_live_replicas_still_run_and_for_no_dead_one() -> None:
    collector = Received()
    collector.take(batch(A, total=0, running=5, at=9.0), 9.0)
    collector.take(batch(B, total=0, running=1, at=10.1), 10.1)
    assert collector.running(until=10.0, now=10.2) is None  # the first has not counted since then
    collector.take(batch(A, total=0, running=2, at=10.2), 10.2)
    assert collector.running(until=10.0, now=10.3) == 3
    collector.take(batch(B, total=0, running=0, at=14.0), 14.0)
    assert collector.running(until=10.0, now=14.1) == 0
    assert collector.silent(14.1) == 1
