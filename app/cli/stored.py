"""The Redis of XYLEM_REDIS_URL, or of the running `xylem up`, for a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.cli.report import refuse

if TYPE_CHECKING:
    from redis import Redis

    from app.keys import Keys


@contextmanager
def stored() -> "Iterator[tuple[Redis, Keys]]":
    """Its client and the deployment's keys. If it can't be reached, the command ends with one line that says so."""
    import redis

    from app.addresses.redis_url import without_password
    from app.cli.running_system import command_settings
    from app.errors import SettingsError
    from app.store import sync_client

    try:
        settings = command_settings()
    except SettingsError as exc:
        refuse(exc.message)
    try:
        with sync_client(settings.redis_url, 5, settings.keys.home) as client:
            yield client, settings.keys
    except (redis.RedisError, OSError) as exc:
        refuse(f"Redis at {without_password(settings.redis_url)}: {exc}", code=1)
