"""Collects what `xylem record` gets from the API replicas, and makes a trace of it."""

from collections.abc import Callable, Iterator
from itertools import count

from app.cli.trace import Request
from app.ids import ApiId
from app.kv.blocks import HASH_BYTES
from app.messages.recording import Recorded, RecordedBatch

_SILENT_S = 3.0  # replicas report twice a second


class Received:
    """Grows with the requests, some hundred bytes each."""

    def __init__(self) -> None:
        self._records: dict[str, Recorded] = {}
        self._last: dict[ApiId, RecordedBatch] = {}
        self._heard: dict[ApiId, float] = {}
        self._got = 0

    def take(self, batch: RecordedBatch, now: float) -> None:
        """`now`: monotonic."""
        self._last[batch.api], self._heard[batch.api] = batch, now
        self._got += len(batch.records)
        for record in batch.records:
            earlier_record = self._records.get(record.request)
            # Two records: another replica has continued the answer.
            if earlier_record is None or sum(record.answers) >= sum(earlier_record.answers):
                self._records[record.request] = record

    def __len__(self) -> int:
        return len(self._records)

    @property
    def replicas(self) -> int:
        return len(self._last)

    @property
    def lost(self) -> int:
        """Records that replicas have made, and that did not arrive."""
        return sum(batch.total for batch in self._last.values()) - self._got

    @property
    def unanswered(self) -> int:
        return sum(batch.unanswered for batch in self._last.values())

    def silent(self, now: float) -> int:
        """Number of replicas that have ended, or whose reports don't come."""
        return sum(now - heard_at > _SILENT_S for heard_at in self._heard.values())

    def running(self, until: float, now: float) -> int | None:
        """Number of requests of the time up to `until` that still run; None: a replica has not reported yet."""
        live = [batch for api, batch in self._last.items() if now - self._heard[api] <= _SILENT_S]
        return None if any(batch.at <= until for batch in live) else sum(batch.running for batch in live)

    def requests(self, since: float, until: float) -> Iterator[Request]:
        """The trace's lines by arrival, one for each choice.

        Block and session digests become numbers, in the order in which they first come.
        """
        block, session = _numbers(), _numbers()
        for record in sorted(self._records.values(), key=lambda r: (r.came, r.request)):
            if record.came > until:
                continue
            starts = range(0, len(record.blocks), HASH_BYTES)
            ids = [block(record.blocks[start : start + HASH_BYTES]) for start in starts]
            of = session(record.session) if record.session else None
            for answer in record.answers:
                yield Request(record.prompt, answer, round((record.came - since) * 1000), ids, of)


def _numbers() -> Callable[[bytes], int]:
    numbers: dict[bytes, int] = {}
    new = count()

    def number(digest: bytes) -> int:
        if digest not in numbers:
            numbers[digest] = next(new)
        return numbers[digest]

    return number
