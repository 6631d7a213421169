"""Whether the records of usage say what answers have said: by the database that the usage writer fills."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.usage.database import UsageDatabase
from app.usage.query import UsageQuery
from tests.chaos.fleet import Fleet
from tests.chaos.load import Asked

_PATIENCE_S = 30.0

Tokens = tuple[int, int, int]  # of a prompt, of these cached, of an answer


@dataclass
class Used:
    answers: int = 0  # that ended with their usage
    error: int = 0  # tokens that records have too many or too few
    wrong: list[str] = field(default_factory=list)


def used(fleet: Fleet, done: Iterable[Asked]) -> Used:
    """Of a fleet that is quiet, once all records are written, or that is still so when patience ends."""
    assert fleet.usage is not None
    told = {request: tokens for asked in done if asked.seen.ends for request, tokens in asked.seen.told.items()}
    database, end = UsageDatabase(f"sqlite:///{fleet.usage}"), time.monotonic() + _PATIENCE_S
    try:
        while (found := differences(told, recorded(database))).wrong and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        database.close()
    return found


def recorded(database: UsageDatabase) -> dict[str, Tokens]:
    return {
        row["id"]: (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"])
        for page in database.records(UsageQuery(0, 2**40))
        for row in page
    }


def differences(told: dict[str, Tokens], records: dict[str, Tokens]) -> Used:
    """Requests without an answer may have a record, too."""
    found = Used(len(told))
    for request, tokens in told.items():
        record = records.get(request, (0, 0, 0))
        if record != tokens:
            found.error += sum(abs(a - b) for a, b in zip(record, tokens, strict=True))
            found.wrong.append(f"{request} told {tokens}, and its record has {record}")
    return found
