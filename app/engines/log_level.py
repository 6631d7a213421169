"""The level of an engine's own log: ours."""

from app.settings import load_settings


def log_level() -> str:
    """`DEBUG`, `INFO`, `WARNING` or `ERROR`."""
    return load_settings().log_level.upper()
