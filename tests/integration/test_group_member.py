"""A member of an engine on several hosts, its looks at the others taken one by one."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from app.ids import PoolId, WorkerId
from app.settings import load_settings
from workers.engine.group_member import GroupMember

POOL = PoolId("decode-pool-a")


class Forgetful(Redis):
    """Loses all it knows just before the command, or transaction, whose number is `at`."""

    at: int | None = None

    def count(self) -> None:
        if self.at is not None:
            self.at -= 1
            if self.at < 0:
                self.at = None
                self.flushall()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.count()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        pipe: Any = super().pipeline(*args, **options)
        execute = pipe.execute

        def counted() -> Any:
            self.count()
            return execute()

        pipe.execute = counted
        return pipe


@pytest.fixture
def client(valkey_url: str) -> Iterator[Forgetful]:
    redis: Forgetful = Forgetful.from_url(valkey_url)  # type: ignore[assignment]
    redis.flushall()
    yield redis
    redis.close()


@pytest.fixture
def pair(client: Forgetful, monkeypatch: pytest.MonkeyPatch) -> list[GroupMember]:
    """Two that are one engine; an exit of either is an AssertionError."""

    def exits(status: int) -> None:
        raise AssertionError("the member has ended its process")

    monkeypatch.setattr("os._exit", exits)
    members = [GroupMember(load_settings(), POOL, 2, WorkerId(name), f"10.0.0.{name}") for name in "12"]
    while not all(member.formed.is_set() for member in members):
        for member in members:
            member._look(client)
    return members


@pytest.mark.parametrize("at", range(4))
def test_a_redis_that_loses_all_between_any_two_commands_loses_no_member(
    client: Forgetful, pair: list[GroupMember], at: int
) -> None:
    client.at = at
    for _ in range(3):
        for member in pair:
            member._look(client)
    assert client.at is None


def test_a_member_whose_lease_alone_is_gone_is_lost(client: Forgetful, pair: list[GroupMember]) -> None:
    first, second = pair
    second._look(client)
    client.delete(first._keys.member(WorkerId("1")))
    with pytest.raises(AssertionError, match="ended its process"):
        second._look(client)
