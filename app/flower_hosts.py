"""Flower answers only for hosts that are named: who uses it may stop workers, and it has no login by default."""

import sys
from typing import Any

from app.addresses.host_names import is_named
from app.running.log_lines import setup_logging
from app.settings import ANY, Settings


def guard(settings: Settings) -> None:
    """Makes Flower's server check `Host` and write its log as the API does.

    Outside of `celery -A app flower` it does nothing.
    """
    command: Any = sys.modules.get("flower.command")  # Celery has loaded its plugins before the app
    names = frozenset(settings.allowed_hosts)
    if command is None:
        return
    from tornado.web import ErrorHandler

    class Guarded(command.Flower):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            setup_logging(settings.log_level, json=settings.log_json)  # in place of Tornado's, which is set up by now
            super().__init__(*args, **options)

        def find_handler(self, request: Any, **options: Any) -> Any:
            """Tornado asks a router for what handles a request."""
            checks_host = names or self.options.address in ("127.0.0.1", "::1", "localhost")
            if not checks_host or ANY in names or is_named(request.host.lower(), names):
                return super().find_handler(request, **options)
            return self.get_handler_delegate(request, ErrorHandler, {"status_code": 421})

    command.Flower = Guarded
