"""Tenants, keys and prices in Redis, for a command. Each change is noted in the audit log."""

import getpass
import os
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from app.cli.report import refuse

if TYPE_CHECKING:
    from redis import Redis

    from app.keys import Keys
    from app.store import Command
    from app.tenants.registry import Change, Registry


def execute(redis: Any, command: "Command") -> Any:
    """Its reply, as redis-py makes it."""
    return redis.execute_command(*command)


def registry(redis: "Redis", names: "Keys") -> "Registry":
    from app.tenants.registry import read_commands, registry_of

    return registry_of([execute(redis, command) for command in read_commands(names)])


def change(
    redis: "Redis",
    names: "Keys",
    before: "Registry",
    changes: "Iterable[Change]",
    action: str,
    target: str,
    detail: Mapping[str, Any],
) -> None:
    """All of the changes or none. Refuses if somebody has changed something since `before` was read."""
    import time

    from app.tenants.audit import entry, note_command
    from app.tenants.registry import change_command

    if not execute(redis, change_command(names, before, changes)):
        refuse("somebody else has just changed tenants, keys or prices: look at them, and try again", code=1)
    note = entry(_who(), f"xylem {action}", target, detail, when=time.time())
    execute(redis, note_command(names, note))


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"command line: {user}@{socket.gethostname()}"
