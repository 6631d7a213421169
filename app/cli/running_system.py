"""The `xylem up` of this user, for commands: nobody has to copy the address of its Redis."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.settings import Settings

REDIS_URL = "redis_url"  # the file of a run's folder that has the embedded Valkey's URL, with its password
SIGN_IN_KEY = "admin-key"  # the file there that has the key of the console's link


def command_settings() -> "Settings":
    """The settings; where they name no Redis, with that and the state of the `xylem up` at XYLEM_PORT, if there is one.

    Raises: SettingsError.
    """
    from app.cli.probes import redis_problem
    from app.settings import load_settings

    settings = load_settings()
    file = settings.run_folder / REDIS_URL
    if "redis_url" in settings.model_fields_set or not file.exists():
        return settings
    settings = settings.model_copy(update={"state": settings.state or settings.run_folder})
    url = file.read_text()
    return settings if redis_problem(url) else settings.model_copy(update={"redis_url": url})
