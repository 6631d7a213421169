"""Finds out who sent a token. A token that was seen before costs a hash and a look into a dict."""

from collections.abc import Mapping

from app.api.oidc.signing_keys import SigningKeys
from app.ids import TenantId
from app.settings import Settings
from app.store import clock
from app.tenants.records import Tenant
from app.tenants.tokens import (
    LEEWAY_S,
    Claims,
    Verified,
    header_of,
    key_for,
    looks_signed,
    refused,
    tenant_of,
    verified,
)

_MOST = 10_000  # tokens that are remembered


class Login:
    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self._known: dict[bytes, Verified] = {}  # by the SHA-256 of the token, the oldest first
        self.signing_keys = SigningKeys(claims.issuer, self._known.clear)

    @classmethod
    def of(cls, settings: Settings) -> "Login | None":
        """None: there is no issuer."""
        if settings.oidc_issuer is None or settings.oidc_audience is None:
            return None
        claim, _, value = (settings.oidc_admin or "").partition("=")
        return cls(
            Claims(
                settings.oidc_issuer,
                settings.oidc_audience,
                settings.oidc_tenant_claim,
                settings.oidc_models_claim,
                (claim, value) if value else None,
            )
        )

    @staticmethod
    def takes(credential: bytes) -> bool:
        """Whether it looks like a token, and not like an API key."""
        return looks_signed(credential)

    def tenant(self, token: Verified, tenants: Mapping[TenantId, Tenant]) -> TenantId:
        """Raises: Forbidden."""
        return tenant_of(token, tenants, self.claims)

    def known(self, digest: bytes) -> Verified | None:
        identity = self._known.get(digest)
        if identity is not None and identity.expires + LEEWAY_S <= clock.now():
            del self._known[digest]
            return None
        return identity

    async def verify(self, digest: bytes, credential: bytes) -> Verified:
        """Raises: Unauthorized, IssuerDown."""
        token = credential.decode("latin-1")
        kid, algorithm = header_of(token)
        if not self.signing_keys.loaded:
            await self.signing_keys.refresh()
            self.signing_keys.check_loaded()
        key = key_for(self.signing_keys.keys, kid, algorithm)
        if key is None:  # perhaps a new one
            await self.signing_keys.refresh()
            key = key_for(self.signing_keys.keys, kid, algorithm)
        if key is None:
            raise refused("the issuer has no such key")
        identity = verified(token, key, self.claims)
        if len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[digest] = identity
        return identity
