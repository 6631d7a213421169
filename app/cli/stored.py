"""The Redis of XYLEM_REDIS_URL, or of the running `xylem up`, for a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.cli.report import refuse

if TYPE_CHECKING:
    from redis import Redis

    from app.keys import Keys
    from app.settings import Settings


def found_settings() -> "Settings":
    """The settings of a command, which ends with one line if they are wrong."""
    from app.cli.running_system import command_settings
    from app.errors import SettingsError

    try:
        return command_settings()
    except SettingsError as exc:
        refuse(exc.message)


@contextmanager
def stored(settings: "Settings | None" = None) -> "Iterator[tuple[Redis, Keys]]":
    """Its client and the deployment's keys. If it can't be reached, the command ends with one line that says so."""
    import redis

    from app.addresses.redis_url import without_password
    from app.store import sync_client

    settings = settings or found_settings()
    try:
        with sync_client(settings.redis_url, 5, settings.keys.home) as client:
            yield client, settings.keys
    except (redis.RedisError, OSError) as exc:
        refuse(f"Redis at {without_password(settings.redis_url)}: {exc}", code=1)
