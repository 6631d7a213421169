"""A body is read whole, whatever its pieces are, and never beyond its limit."""

from collections.abc import Sequence
from random import Random

import pytest
from starlette.types import Message, Scope

from app.api.intake.request_body import collect
from app.errors import BodyTooLarge, Cancelled

LIMIT = 4 * 2**20
SCOPE: Scope = {"headers": []}


class Client:
    """Sends these pieces, then leaves."""

    def __init__(self, pieces: Sequence[bytes], *, ends: bool = True) -> None:
        last = len(pieces) - 1
        self.messages: list[Message] = [
            {"type": "http.request", "body": piece, "more_body": not ends or number < last}
            for number, piece in enumerate(pieces)
        ]

    async def receive(self) -> Message:
        return self.messages.pop(0) if self.messages else {"type": "http.disconnect"}


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, LIMIT])
@pytest.mark.parametrize("piece", [2**16, 700_001, LIMIT])
async def test_a_body_is_the_same_however_it_comes(size: int, piece: int) -> None:
    body = Random(size).randbytes(size)
    pieces = [body[start : start + piece] for start in range(0, size, piece)] or [b""]
    assert await collect(SCOPE, Client(pieces).receive, LIMIT) == body
    assert await collect(SCOPE, Client([*pieces, b""]).receive, LIMIT) == body


async def test_a_body_without_a_length_is_refused_at_its_first_byte_too_much() -> None:
    client = Client([bytes(2**20)] * 6)
    with pytest.raises(BodyTooLarge):
        await collect(SCOPE, client.receive, LIMIT)
    assert len(client.messages) == 1


async def test_a_client_that_leaves_within_a_long_body_gets_no_answer() -> None:
    with pytest.raises(Cancelled):
        await collect(SCOPE, Client([bytes(2**20)] * 2, ends=False).receive, LIMIT)
