"""Beginnings of key names: the deployment's, and where Redis is a cluster, the tags that share a slot."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_MOST = 4096  # names that are remembered, of each kind


def remembered(name: F) -> F:
    """`name`, which is called for each request with the same few arguments: of pools and workers."""
    return cast(F, lru_cache(_MOST)(name))


class KeyNames:
    def __init__(self, deployment: str, *, clustered: bool = False) -> None:
        """`clustered`: the names are for a Redis Cluster."""
        self.prefix = f"{deployment}:"  # of Celery's keys: its broker is a single server
        self._deployment, self._clustered = deployment, clustered
        self._fleet, self._kept = self._tagged(), self._tagged("kept")

    def _tagged(self, part: str = "") -> str:
        """The beginning of names that have one slot in a cluster."""
        tag = f"{self._deployment}.{part}" if part else self._deployment
        return f"{{{tag}}}:" if self._clustered else self.prefix
