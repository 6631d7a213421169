"""Content of a webhook about an answer's end."""

from typing import Any

import pytest

from app.api.resumable.response_webhook import Untold, status_of
from app.ids import RequestId
from app.messages.events import Delta, Done, Failed

R = RequestId("resp_1")
DONE = Done(R, 0)


@pytest.mark.parametrize(("events", "status"), [
    ([Delta(R, 0, "a", [1], finish="stop"), DONE], "completed"),
    ([Delta(R, 0, "a", [1]), Delta(R, 0, "", [], finish="length"), DONE], "incomplete"),
    ([Delta(R, 0, "a", [1]), Failed(R, 0, "engine_failed", "no")], "failed"),
    ([Failed(R, 0, "cancelled", "It was cancelled.")], "cancelled"),
    ([Delta(R, 0, "a", [1])], ""),
    ([], ""),
])  # fmt: skip
def test_the_status_is_that_of_the_response(events: list[Any], status: str) -> None:
    assert status_of(events) == status


def test_what_is_untold_comes_out_of_redis_as_it_went_in() -> None:
    one = Untold(R, 3, "completed")
    assert Untold.read(one.member().encode()) == one
    assert Untold.read(b"0||resp_1") == Untold(R)
