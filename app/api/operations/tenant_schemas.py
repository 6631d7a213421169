"""Schemas of what admins may say of tenants, keys and prices, and of what they are shown.

The OpenAPI document has them, too.
"""

from typing import Any

from app.api.http.answer_schemas import Shape
from app.openai.body import Body
from app.tenants.records import DEFAULT
from app.tenants.wanted import KeyName, ModelName, Sha256, WantedLimits, WantedPrice, WantedTenant


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


class Limited(Shape):
    """The limits of a tenant or a key; only those that there are."""

    models: list[str] | None = None
    requests_per_min: int = 0
    tokens_per_min: int = 0
    parallel: int = 0
    budget: str = ""
    min_priority: int = 0
    default_priority: int = 0
    default_max_tokens: int = 0
    max_tokens: int = 0
    batch_requests_per_min: int = 0
    batch_tokens_per_min: int = 0
    batch_lines: int = 0
    file_quota: int = 0
    keep_bytes: int = 0
    expires: str = ""


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


class PriceCard(Shape):
    input: float
    cached_input: float | None
    output: float
    image: float


class PriceTable(Shape):
    prices: dict[str, PriceCard]


class AuditEntry(Shape):
    id: str
    when: float  # seconds since the epoch
    who: str
    action: str
    target: str
    detail: dict[str, Any]
    outcome: str  # "ok", or the error's code


class AuditLog(Shape):
    data: list[AuditEntry]
    has_more: bool
