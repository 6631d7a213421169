"""Shows what a worker would run with: its pool, and its engine's arguments after all merging, without secrets."""

from typing import Any

import yaml

from app.engines.base import Configured
from app.errors import SettingsError
from app.ids import PoolId
from app.pools.engine_args import masked, with_args
from app.pools.fetched_pools import fetched_pool
from app.pools.pools_file import load_pools
from app.runner.engine_factory import create_engine
from app.settings import Settings


def shown_config(settings: Settings, name: str) -> str:
    """The configuration as YAML. Of a remote model, only its configuration is fetched. Raises: SettingsError."""
    pools = load_pools(settings.pools_file).pools
    if name not in pools:
        raise SettingsError(f"{settings.pools_file} has no pool '{name}' (it has: {', '.join(sorted(pools))})")
    pool = with_args(pools[PoolId(name)], settings.engine_args)
    engine = create_engine(fetched_pool(pool, settings, "text"), settings.address or "127.0.0.1")
    own: dict[str, Any] = {"engine": dict(engine.configuration())} if isinstance(engine, Configured) else {}
    pool_fields = {"name": name} | pool.model_dump(mode="json", exclude={"path"})
    config = {"pool": pool_fields | {"path": pool.path}, **own}
    return yaml.safe_dump(masked(config), sort_keys=False, allow_unicode=True)
