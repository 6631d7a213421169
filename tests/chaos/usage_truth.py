"""Whether the records of usage say what answers have said: by the database that the usage writer fills.

Of an answer that was taken over, each owner has told its own number of cached tokens: when Redis loses an end that a
client has read, another owner ends the answer again. The last one's record counts.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.usage.database import UsageDatabase
from app.usage.query import UsageQuery
from tests.chaos.fleet import Fleet
from tests.chaos.load import Asked

_PATIENCE_S = 30.0

Tokens = tuple[int, int, int]  # of a prompt, of these cached, of an answer


class Recorded(NamedTuple):
    tokens: Tokens
    epoch: int


@dataclass
class Used:
    answers: int = 0  # that ended with their usage
    error: int = 0  # tokens that records have too many or too few
    wrong: list[str] = field(default_factory=list)


def used(fleet: Fleet, done: Iterable[Asked]) -> Used:
    """The usage of a quiet fleet, once all records are written, or as it is when patience ends."""
    assert fleet.usage is not None
    tokens_by_request = {
        request: tokens
        for client_request in done
        if client_request.seen.ends
        for request, tokens in client_request.seen.told.items()
    }
    database, end = UsageDatabase(f"sqlite:///{fleet.usage}"), time.monotonic() + _PATIENCE_S
    try:
        while (usage := differences(tokens_by_request, recorded(database))).wrong and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        database.close()
    return usage


def recorded(database: UsageDatabase) -> dict[str, Recorded]:
    return {
        row["id"]: Recorded((row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]), row["epoch"])
        for page in database.records(UsageQuery(0, 2**40))
        for row in page
    }


def differences(told: Mapping[str, Tokens], records: Mapping[str, Recorded]) -> Used:
    """Requests without an answer may have a record, too."""
    usage = Used(len(told))
    for request, (prompt, cached_tokens, completion) in told.items():
        record = records.get(request, Recorded((0, 0, 0), 0))
        if record.epoch:
            cached_tokens = record.tokens[1]  # noqa: PLW2901 (as it was charged)
        if (
            error := sum(abs(a - b) for a, b in zip(record.tokens, (prompt, cached_tokens, completion), strict=True))
        ) > 0:
            usage.error += error
            usage.wrong.append(f"{request} told {told[request]}, and its record has {record}")
    return usage
