"""Schemas of what admins may say of tenants, keys and prices, and of what they are shown.

The OpenAPI document has them, too.
"""

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, create_model
from typing_extensions import TypedDict

from app.schemas.body import Body
from app.tenants.audit import AuditEntry
from app.tenants.limit_table import ROWS, Kind
from app.tenants.records import DEFAULT
from app.tenants.wanted import KeyName, ModelName, Sha256, WantedLimits, WantedPrice, WantedTenant


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewTenant(WantedTenant, Body):
    """Null: no limit here."""


class NewKey(WantedLimits, Body):
    name: KeyName
    tenant: str = DEFAULT
    sha256: Sha256 | None = None  # of a key that clients have; null: a new one is made


class KeyChanges(WantedLimits, Body):
    tenant: str | None = None


class PriceChanges(Body):
    prices: dict[ModelName, WantedPrice | None]


# By the kind of a limit's row: numbers are the others.
_TEXTS: dict[Kind, Any] = {"models": (list[str] | None, None), "budget": (str, ""), "time": (str, "")}

if TYPE_CHECKING:
    Limited = Shape  # as `wanted.WantedLimits`
else:
    Limited = create_model(
        "Limited",
        __base__=Shape,
        __doc__="The limits of a tenant or a key; only those that there are.",
        **{name: _TEXTS.get(row.kind, (int, 0)) for name, row in ROWS.items()},
    )


class TenantCard(Limited):
    name: str
    created: float  # seconds since the epoch
    keys: int  # how many it has
    weight: float
    content_logged: bool


class TenantList(Shape):
    data: list[TenantCard]


class KeyCard(Limited):
    name: str
    id: str  # the owner of what is made with it
    tenant: str
    created: float  # seconds since the epoch


class KeyList(Shape):
    data: list[KeyCard]


class MadeKey(KeyCard):
    key: str = ""  # itself, this once; absent if it came as a SHA-256


class PriceCard(TypedDict, closed=True):
    input: float
    cached_input: float | None
    output: float
    image: float


class PriceTable(TypedDict, closed=True):
    prices: dict[str, PriceCard]


class AuditLog(TypedDict, closed=True):
    data: list[AuditEntry]
    has_more: bool
