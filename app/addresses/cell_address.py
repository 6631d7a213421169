"""`XYLEM_CELLS`: the deployments that serve together, each as `redis://host:6379/0#deployment[#broker=redis://…]`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from app.addresses.redis_url import RedisUrl, cluster, split_urls, without_password

DEPLOYMENT = r"^[A-Za-z0-9_-]+$"
_URL: TypeAdapter[str] = TypeAdapter(RedisUrl)


class CellAddress(NamedTuple):
    """Fields are named as in `Settings`."""

    redis_url: str
    deployment: str
    broker_url: str | None = None

    @property
    def name(self) -> str:
        """The cell's name in metrics and logs."""
        return f"{without_password(self.redis_url)}#{self.deployment}"


def cell_addresses(text: str) -> tuple[CellAddress, ...]:
    """Raises: ValueError."""
    cells = tuple(_address(part) for part in split_urls(text))
    names = [cell.name for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice")
    return cells


def others(cells: Sequence[CellAddress], redis_url: str, deployment: str) -> list[CellAddress]:
    """The cells but for this one, so that all replicas may have the same list."""
    own = CellAddress(redis_url, deployment).name
    return [cell for cell in cells if cell.name != own]


def _address(text: str) -> CellAddress:
    url, _, rest = text.partition("#")
    deployment, _, broker = rest.partition("#broker=")
    if not re.fullmatch(DEPLOYMENT, deployment) or not url or rest.endswith("="):
        raise ValueError(f"{without_password(text)!r} has to be a URL of Redis, '#' and the cell's XYLEM_DEPLOYMENT")
    if cluster(url) is not None and not broker:
        raise ValueError(f"{without_password(text)!r} is a cluster, which needs '#broker=' and a single Redis")
    try:
        return CellAddress(_URL.validate_python(url), deployment, _URL.validate_python(broker) if broker else None)
    except ValidationError as exc:
        raise ValueError(exc.errors()[0]["msg"].removeprefix("Value error, ")) from None
