"""Making API keys, and giving them limits. Pure but for the randomness of a new key."""

import hashlib
import re
import secrets

from msgspec import structs

from app.errors import RequestError, TenantNotFound
from app.ids import KeyId, TenantId, new_key_id
from app.tenants.limit_table import TenantLimits
from app.tenants.records import ApiKey
from app.tenants.registry import Registry

# Fields of `TenantLimits` that `ApiKey` has itself, since older versions know them there.
_OWN = (
    "requests_per_min",
    "tokens_per_min",
    "file_quota",
    "min_priority",
    "batch_requests_per_min",
    "batch_tokens_per_min",
)


TENANT_NAME = "^[A-Za-z0-9._-]{1,64}$"
_DOTS = (".", "..")  # which clients take out of a path, however they are encoded


def new_token() -> str:
    """A new key itself, which only its holder gets."""
    return f"xyl-{secrets.token_urlsafe(32)}"


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def check_name(name: str) -> None:
    """Checks a new key's name, which is to stand in a path. Raises: RequestError."""
    if not name.strip() or not name.isprintable() or len(name) > 64:
        raise RequestError("a key's name has 1 to 64 printable characters", param="name")
    if "/" in name or name in _DOTS:
        raise RequestError("a key's name has no slash, and is not '.' or '..': it is part of paths", param="name")


def check_tenant_name(name: str) -> None:
    """Checks a new tenant's name, which is to stand in a path. Raises: RequestError."""
    if name in _DOTS:
        raise RequestError("a tenant's name is not '.' or '..': it is part of paths", param="tenant")
    if not re.fullmatch(TENANT_NAME, name):
        raise RequestError(
            f"'{name[:100]}': a tenant's name has 1 to 64 letters, digits, dots, dashes and underscores", param="tenant"
        )


def check_tenant(now: Registry, tenant: str) -> TenantId:
    """Raises: TenantNotFound."""
    if not now.has(tenant_id := TenantId(tenant)):
        raise TenantNotFound(f"There is no tenant '{tenant[:100]}': xylem tenants set makes one.", param="tenant")
    return tenant_id


def new_key(
    now: Registry, name: str, tenant: str, digest: bytes, limits: TenantLimits, at: float, id_: KeyId | None = None
) -> ApiKey:
    """`at`: the time. Raises: TenantNotFound; RequestError, if there is such a name or digest already."""
    if name in now.keys:
        raise RequestError(f"There is a key '{name}' already: take another name, or revoke it first.", param="key")
    if same := next((key.name for key in now.keys.values() if key.digest == digest), None):
        raise RequestError(f"The key '{same}' is the same: it has the same SHA-256.", param="sha256")
    api_key = ApiKey(name, digest, at, id=id_ or new_key_id(), tenant=check_tenant(now, tenant))
    return with_limits(api_key, limits)


def with_limits(key: ApiKey, limits: TenantLimits) -> ApiKey:
    own = {name: getattr(limits, name) for name in _OWN}
    return structs.replace(key, **own, more=structs.replace(limits, **dict.fromkeys(_OWN)))
