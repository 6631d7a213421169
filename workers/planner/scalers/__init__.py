"""What carries a planner's decisions out."""

from app.errors import SettingsError
from app.pools import PoolsFile
from app.settings import Settings
from workers.planner.scalers.base import RedisScaler, Scaler


def scaler_of(name: str, settings: Settings, declared: PoolsFile) -> Scaler:
    """Raises: SettingsError."""
    if name == "redis":
        return RedisScaler()
    raise SettingsError(f"--scaler={name}: there are redis, kubernetes, ssh")
