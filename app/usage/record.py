"""Records what one request used. No prompt, and nothing of an answer."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from app.ids import BatchId, KeyId, RequestId, TenantId
from app.messages.kinds import Task
from app.messages.wire import decoder
from app.tenants.cost import Used


class LineTry(NamedTuple):
    """A try of a batch's line."""

    batch: BatchId
    id: RequestId
    ticket: int  # of its part: a later one makes it void


class UsageRecord(Struct, frozen=True, array_like=True, gc=False):
    """A record of a request, or of a pipeline's stage: of those of one id, the one of the highest epoch counts.

    A request that no worker had has no tokens. Times of stages are those of its first prompt.
    """

    id: RequestId
    epoch: int  # how often another API replica had taken it over
    at: float  # when it ended, seconds since the epoch by Redis' clock
    tenant: TenantId
    key: KeyId
    key_name: str
    model: str
    task: Task
    outcome: str  # one of `errors.OUTCOMES`
    prompt_tokens: int
    cached_tokens: int  # of these
    completion_tokens: int
    images: int = 0  # pictures and videos that were painted
    engine_s: float = 0.0  # of each second of its workers, its share among all requests on the engine
    placement_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    handover_s: float = 0.0  # from one worker's prefill to the other one's first token
    decode_s: float = 0.0
    ttft_s: float | None = None  # None: it had no output
    duration_s: float = 0.0
    attempts: int = 1
    batch: str = ""  # the batch that it is a line of
    x_request_id: str = ""  # the client's own; of a pipeline's stages without one, the answer's id
    parent: str = ""  # the model whose price it has without one of its own: an adapter's, or a pipeline's last one

    @property
    def used(self) -> Used:
        counts = self.prompt_tokens, self.cached_tokens, self.completion_tokens, self.images
        return Used(self.model, *counts, parent=self.parent)


def latest(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """One of each id: that of the highest epoch; of equal ones the first."""
    latest_by_id: dict[RequestId, UsageRecord] = {}
    for record in records:
        other = latest_by_id.get(record.id)
        if other is None or record.epoch > other.epoch:
            latest_by_id[record.id] = record
    return list(latest_by_id.values())


decode_usage = decoder(list[UsageRecord])
