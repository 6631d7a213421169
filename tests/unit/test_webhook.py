"""A call of the webhook."""

import pytest

from app.webhooks import webhook
from tests.dripping import dripping


async def test_a_call_ends_in_time_however_slowly_the_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never ends a header held the turn of all others, and was made again and again beside it."""
    monkeypatch.setattr(webhook, "_TIMEOUT_S", 0.3)
    async with dripping(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n") as (url, departures):
        assert await webhook.tell(f"{url}/hook", None, "response.completed", "resp_1") == "TimeoutError"
        await departures.get()
