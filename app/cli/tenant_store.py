"""Tenants, keys and prices in Redis, for a command. Each change is noted in the audit log."""

import getpass
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from app.cli.report import err, refuse
from app.cli.stored import found_settings, stored

if TYPE_CHECKING:
    from app.keys import Keys
    from app.store import Command
    from app.tenants.limit_table import TenantLimits
    from app.tenants.registry import Change, Registry


class TenantStore:
    def __init__(self, redis: Any, names: "Keys", keys_required: bool | None) -> None:
        """`keys_required`: whether the API requires keys; None: nobody knows here."""
        self._redis, self.names, self._keys_required = redis, names, keys_required

    @cached_property
    def now(self) -> "Registry":
        """All of them, as they were when they were first asked for."""
        from app.tenants.registry import read_commands, registry_of

        return registry_of([self.execute(command) for command in read_commands(self.names)])

    def execute(self, command: "Command") -> Any:
        """Its reply, as redis-py makes it."""
        return self._redis.execute_command(*command)

    def change(self, changes: "Iterable[Change]", action: str, target: str, detail: Mapping[str, Any]) -> None:
        """All of the changes or none. Refuses if somebody has changed something since `now` was read."""
        import time

        from app.tenants.audit import entry, note_command
        from app.tenants.registry import change_command

        if not self.execute(change_command(self.names, self.now, changes)):
            refuse("somebody else has just changed tenants, keys or prices: look at them, and try again", code=1)
        del self.now
        note = entry(_who(), f"xylem {action}", target, detail, when=time.time())
        self.execute(note_command(self.names, note))

    def warn(self, whose: str, limits: "TenantLimits") -> None:
        """Tells of limits that do nothing as things are."""
        from app.tenants.limit_warnings import limit_warnings

        for text in limit_warnings(limits, self.now.prices, keys_required=self._keys_required):
            err.print(f"[yellow]warning:[/] {escape(whose)}: {escape(text)}", soft_wrap=True)


@contextmanager
def tenant_store() -> Iterator[TenantStore]:
    settings = found_settings()
    keys_required = settings.require_keys if "require_keys" in settings.model_fields_set else None
    with stored(settings) as (redis, names):
        yield TenantStore(redis, names, keys_required)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"command line: {user}@{socket.gethostname()}"
