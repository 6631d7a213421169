"""Scalers, which carry out a planner's decisions."""

from app.errors import SettingsError
from app.planner.rules import scales_of
from app.pools.schema import PoolsFile
from app.settings import Settings
from workers.planner.scalers.base import RedisScaler, Scaler
from workers.planner.scalers.kubernetes import KubernetesScaler
from workers.planner.scalers.ssh import SshScaler


def scaler_of(name: str, settings: Settings, pools_file: PoolsFile) -> Scaler:
    """Raises: SettingsError."""
    if name == "redis":
        return RedisScaler()
    if name == "kubernetes":
        kinds = {pool: scale.kind for pool, scale in scales_of(pools_file).items()}
        return KubernetesScaler.of_this_pod(settings.kubernetes_name, kinds)
    if name == "ssh":
        hosts = {pool: scale.hosts for pool, scale in scales_of(pools_file).items()}
        for pool, slots in hosts.items():
            if not slots:
                raise SettingsError(f"{settings.pools_file}: pools.{pool}.scale.hosts: --scaler=ssh needs them")
        return SshScaler(hosts, settings.ssh_config)
    raise SettingsError(f"--scaler={name}: there are redis, kubernetes, ssh")
