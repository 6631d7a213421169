"""The level of an engine's own log: ours. And the root logger, which some engines take for themselves."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from app.settings import load_settings


def log_level() -> str:
    """`DEBUG`, `INFO`, `WARNING` or `ERROR`."""
    return load_settings().log_level.upper()


@contextmanager
def root_logger_kept() -> Iterator[None]:
    """Restores the root logger's handlers and level at the end: what is called in it may change them."""
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
