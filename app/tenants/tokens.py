"""Tokens that an OpenID Connect issuer has signed (JWT): what they must have, and whom they name. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
from msgspec import Struct

from app.errors import Forbidden, Unauthorized
from app.ids import KeyId, TenantId
from app.tenants.records import DEFAULT

ALGORITHMS = ("RS256", "ES256", "PS256", "EdDSA")
_LONGEST = 2**14  # characters: PyJWT looks at each of them several times, and anybody may send some
LEEWAY_S = 10.0  # by which clocks may differ
_CHALLENGE = {"www-authenticate": 'Bearer error="invalid_token"'}
_SCOPES = ("scope", "scp")
_SHOWN = 100


class Claims(Struct, frozen=True):
    """The claims that are read from tokens; the names of nested ones have dots."""

    issuer: str
    audience: str
    tenant: str = "tenant"
    models: str | None = None  # None: tokens name no models
    admin: tuple[str, str] | None = None  # the claim, and the value that admins have there, alone or in a list


class Verified(Struct, frozen=True):
    owner: KeyId  # of what is made with such tokens: of this person in this tenant
    subject: str
    expires: float  # seconds since the epoch
    tenant: TenantId | None  # None: the token names none
    models: list[str] | None
    is_admin: bool


def looks_signed(credential: bytes) -> bool:
    """Whether it is a JWT by its looks, and no API key."""
    return credential.count(b".") == 2 and credential.startswith(b"ey")


def refused(why: str) -> Unauthorized:
    return Unauthorized(f"This token is not valid: {why}.", headers=_CHALLENGE)


def header_of(token: str) -> tuple[str | None, str]:
    """The id of its key, and its algorithm. Raises: Unauthorized."""
    if len(token) > _LONGEST:
        raise refused(f"it is longer than {_LONGEST} characters")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise refused("it can't be read") from None
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        raise refused(f"its algorithm {str(algorithm)[:_SHOWN]!r} is none of {', '.join(ALGORITHMS)}")
    kid = header.get("kid")
    return (kid if isinstance(kid, str) else None), algorithm


def signing_keys(jwks: Any) -> list[dict[str, Any]]:
    """The public keys among an issuer's with which it may sign. Raises: ValueError, TypeError, KeyError."""
    return [key for key in jwks["keys"] if isinstance(key, dict) and key.get("use", "sig") == "sig"]


def key_for(keys: Sequence[Mapping[str, Any]], kid: str | None, algorithm: str) -> jwt.PyJWK | None:
    """None: there is none of that id. A token without one is of the only key. Raises: Unauthorized."""
    matches = [key for key in keys if key.get("kid") == kid] if kid is not None else list(keys)
    if len(matches) != 1:
        if kid is None:
            raise refused("it doesn't name its key, and the issuer has several")
        return None
    try:
        if matches[0].get("alg", algorithm) != algorithm:
            raise refused(f"its key is not for {algorithm}")
        return jwt.PyJWK(dict(matches[0]), algorithm)
    except jwt.PyJWTError:
        raise refused(f"its key is not for {algorithm}") from None


def verified(token: str, key: jwt.PyJWK, claims: Claims) -> Verified:
    """Raises: Unauthorized."""
    try:
        payload = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=claims.audience,
            issuer=claims.issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud", "sub"], "enforce_minimum_key_length": True},
        )
    except jwt.ExpiredSignatureError:
        raise refused("it has expired") from None
    except jwt.InvalidAudienceError:
        raise refused(f"it is not for {claims.audience!r}") from None
    except jwt.InvalidIssuerError:
        raise refused(f"it is not from {claims.issuer!r}") from None
    except jwt.InvalidSignatureError:
        raise refused("its signature is wrong") from None
    except jwt.MissingRequiredClaimError as exc:
        raise refused(f"it has no {exc.claim!r}") from None
    except jwt.PyJWTError as exc:
        raise refused(str(exc)[:_SHOWN].rstrip(".")) from None
    subject, tenant_claim = str(payload["sub"]), value_of(payload, claims.tenant)
    tenant = tenant_claim if isinstance(tenant_claim, str) else None
    try:
        digest = hashlib.sha256(f"{claims.issuer}\0{subject}\0{tenant or ''}".encode()).hexdigest()
        expires = float(payload["exp"])
    except (UnicodeEncodeError, OverflowError):
        raise refused("its subject or tenant is no text of Unicode, or its end is beyond all time") from None
    return Verified(
        KeyId(f"oidc_{digest[:24]}"),
        subject,
        expires,
        tenant=None if tenant is None else TenantId(tenant),
        models=None if claims.models is None else _words(value_of(payload, claims.models)),
        is_admin=claims.admin is not None and _has(payload, *claims.admin),
    )


def tenant_of(token: Verified, tenants: Mapping[TenantId, Any], claims: Claims) -> TenantId:
    """Raises: Forbidden."""
    if token.tenant is None:
        raise Forbidden(f"This token names no tenant: it has no claim {claims.tenant!r}, or not with a text.")
    if token.tenant not in tenants and token.tenant != DEFAULT:
        raise Forbidden(f"This token names the tenant '{token.tenant[:_SHOWN]}', which does not exist here.")
    return token.tenant


def value_of(claims: Mapping[str, Any], name: str) -> Any:
    """None: there is none."""
    if name in claims:
        return claims[name]
    here: Any = claims
    for part in name.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def _has(claims: Mapping[str, Any], name: str, text: str) -> bool:
    """Whether a claim is that text, or a list with it. Only of scopes does a text have several values (RFC 8693)."""
    value = value_of(claims, name)
    if isinstance(value, str):
        return text in (value.split() if name.rpartition(".")[2] in _SCOPES else [value])
    return isinstance(value, list) and text in value


def _words(value: Any) -> list[str]:
    """Words of a list of texts, or of one with spaces between. A token that doesn't have it has no word."""
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
