"""Chooses which batch is next, and which one is urgent. Pure."""

from collections.abc import Iterable, Mapping
from math import ceil, inf

from msgspec import Struct
from msgspec.structs import replace

from app.batch.records import Batch
from app.ids import BatchId, KeyId
from app.routing.cost import EXPECTED_ANSWER
from app.tenants.rates_and_budgets import Account, Left

LINES = 64  # in a part, which is sent to a batch worker as a whole
PARTS = 64  # that a batch worker has at most
_AHEAD = 1.5  # lines sent for each seat of the engines, so that a free seat gets the next line at once
_MOST_WEIGHT = 16.0
_LATE = 0.9  # share of its time after which a batch is urgent


class Running(Struct, frozen=True):
    """A batch in progress, with parts to send or sent."""

    batch: BatchId
    key: KeyId  # whose it is
    model: str
    todo: int  # parts
    out: int  # parts that are sent and not finished
    weight: float = 1.0
    last_sent: float = 0.0  # when it was last given a part: among equals, the one that has waited longest is next
    answered: int = 0  # lines with a result, in parts that are sent and not finished
    most: float = inf  # lines that the limits of its key and its tenant let be sent

    @property
    def lines(self) -> int:
        """Lines that are sent and have no result yet."""
        return max(0, self.out * LINES - self.answered)


def lines_a_minute(batch: Batch, accounts: Iterable[tuple[Account, Left]]) -> float:
    """Lines that the limits of key and tenant allow a minute; limits of tokens, by the mean tokens of its lines so far.

    None while a budget is used up; a part at a time while running requests have reserved what is left of it, as nothing
    else tells when they have ended.
    """
    tokens, most = batch.prompt + batch.completion, inf
    of_line = tokens / batch.completed if batch.completed and tokens else EXPECTED_ANSWER
    for account, balance in accounts:
        of_tokens = account.tokens / of_line if account.tokens else inf
        most = min(most, account.requests or inf, of_tokens)
        if account.budget is not None and balance.spent + balance.reserved >= account.budget.amount:
            most = min(most, 0 if balance.spent >= account.budget.amount else 1)
    return most


def weight(batch: Batch, now: float) -> float:
    """1 for a batch that is fast enough to be done in time; else the factor by which it is too slow, up to 16."""
    began = batch.in_progress_at or batch.order.created
    ended_lines, left_s = batch.completed + batch.failed, batch.order.expires - now
    if left_s <= 0:
        return _MOST_WEIGHT
    if not batch.left:
        return 1.0
    if not ended_lines:  # it has no pace yet
        wait_share = (now - batch.order.created) / max(1, batch.order.expires - batch.order.created)
        return 1.0 + (_MOST_WEIGHT - 1) * min(1.0, max(0.0, wait_share))
    target_pace, pace = batch.left / left_s, ended_lines / max(1.0, now - began)
    return min(_MOST_WEIGHT, max(1.0, target_pace / pace))


def is_urgent(batch: Batch, now: float) -> bool:
    """Whether its lines don't give way any more.

    In the second half of its time if it is too slow to be done in time, and always in the last tenth.
    """
    if not batch.left and batch.total:
        return False
    order = batch.order
    elapsed_share = (now - order.created) / max(1, order.expires - order.created)
    return elapsed_share >= _LATE or (elapsed_share >= 0.5 and weight(batch, now) > 1.0)


def room(seats: int, running: Iterable[Running]) -> int:
    """Number of further parts of a model that may be sent, if its engines have so many seats.

    Counted by lines: a part may wait long for its last line, which takes one seat only. Lines that wait for their key's
    limits take none.
    """
    out = sum(min(key.lines, key.most) for key in _keys(running).values())
    return max(0, ceil((_AHEAD * seats + LINES - out) / LINES)) if seats else 0


def share_parts(running: Iterable[Running], room: Mapping[str, int], capacity: int) -> dict[BatchId, int]:
    """Number of parts of each batch to send.

    `room`: how many more parts of each model may be sent. `capacity`: how many parts all batch workers can have.

    Each part goes to the one with the fewest for its weight: first among API keys, then among that key's batches. A key
    has the weight of its heaviest batch, so that having many batches is no advantage.
    """
    state = {r.batch: r for r in running}
    keys = _keys(state.values())
    shares: dict[BatchId, int] = {}
    free_parts = dict(room)
    for _ in range(capacity - sum(r.out for r in state.values())):
        waiting = [r for r in state.values() if r.todo > 0 and free_parts[r.model] > 0 and keys[r.key].may_have_more]
        if not waiting:
            break
        key = min({r.key for r in waiting}, key=lambda k: keys[k].least)
        choice = min((r for r in waiting if r.key == key), key=_of_batch)
        shares[choice.batch] = shares.get(choice.batch, 0) + 1
        state[choice.batch] = replace(choice, todo=choice.todo - 1, out=choice.out + 1)
        keys[key].out += 1
        keys[key].lines += LINES
        free_parts[choice.model] -= 1
    return shares


def _of_batch(r: Running) -> tuple[float, float, BatchId]:
    return r.out / r.weight, r.last_sent, r.batch


class _Key(Struct):
    """All batches of one API key."""

    id: KeyId
    out: int = 0
    weight: float = 0.0
    last_sent: float = 0.0
    lines: int = 0
    most: float = 0.0

    @property
    def may_have_more(self) -> bool:
        return self.lines < self.most

    @property
    def least(self) -> tuple[float, float, str]:
        return self.out / self.weight, self.last_sent, self.id


def _keys(running: Iterable[Running]) -> dict[KeyId, _Key]:
    keys: dict[KeyId, _Key] = {}
    for r in running:
        key = keys.setdefault(r.key, _Key(r.key))
        key.out += r.out
        key.lines, key.most = key.lines + r.lines, max(key.most, r.most)
        key.weight, key.last_sent = max(key.weight, r.weight), max(key.last_sent, r.last_sent)
    return keys
