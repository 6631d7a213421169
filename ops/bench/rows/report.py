"""Targets. Each line of `TARGETS` is a part: a module here with a function of its name."""

from ops.bench.figures import targets
from ops.bench.values import plot, tables

__all__ = ["TARGETS", "TITLE", "plot", "tables"]

TITLE = "Every row of the feature list"
TARGETS = targets("""
    listed: rows_open <= 0
    beams: beams_equal >= 1
    revoke: revoke_ms_p99 <= 500
    cpu: request_cpu_ratio <= 1.02
    roles: roles_hosts_equal >= 1
    photos: photos_redis_mb <= 32, photos_ttft_ratio <= 1.05
""")
