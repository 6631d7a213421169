"""The valid API keys, in this process's memory: a request costs one SHA-256 and one look into a dict."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
from pydantic import SecretStr
from starlette.types import Scope

from app.dispatch.quota import Quota
from app.errors import StoreDown, Unauthorized
from app.ids import KeyId, TenantId
from app.keys import Keys
from app.store import Wire
from app.telemetry import logger
from app.tenants.records import NOBODY, ApiKey, Client, Tenant, decode_api_key, decode_tenant

log = logger(__name__)

T = TypeVar("T")

_EVERY_S = 1.0
_PREFIX = 8  # bytes of a digest
# First parts of paths that need no API key: they show nothing of prompts and answers, or check a key of their own.
# All others need one, so that a new endpoint is closed until somebody opens it here.
_OPEN = {"live", "health", "ready", "metrics", "sd", "version", "docs", "redoc", "openapi.json", "admin", "console"}
# vLLM's names for endpoints under /admin, and OpenAI's.
_WITH_ADMIN_KEY = {
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/organization/usage/completions",
}
_OPEN_PATHS = {*_WITH_ADMIN_KEY, "/v2/health/live", "/v2/health/ready"}
_FOR_ADMINS = {"requests"}  # also take the admin key, for which they show the requests of all clients
_ADMIN = "xylem.admin"
_IN_SCOPE = "xylem.key"
_CHALLENGE = {"www-authenticate": "Bearer"}  # RFC 9110 requires it with a 401
_HEADERS = (b"authorization", b"x-api-key", b"api-key")  # the first one with a key counts


def given_key(scope: Scope) -> bytes:
    """The key in `Authorization: Bearer`, `x-api-key` or, from Azure's clients, `api-key`; empty: there is none."""
    for wanted in _HEADERS:
        given = next((value for name, value in scope["headers"] if name == wanted), b"")
        if wanted == b"authorization":
            scheme, _, token = given.partition(b" ")
            given = token if scheme.lower() == b"bearer" else b""
        if key := given.strip():
            return key
    return b""


def is_open(path: str) -> bool:
    return _first(path) in _OPEN or path in _OPEN_PATHS


def wants_admin_key(path: str) -> bool:
    return _first(path) == "admin" or path in _WITH_ADMIN_KEY


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


class ApiKeys:
    def __init__(self, wire: Wire, keys: Keys, admin_key: SecretStr | None = None) -> None:
        self._wire, self._keys = wire, keys
        self._admin_key = admin_key.get_secret_value().encode() if admin_key is not None else None
        # By the first bytes of the digest. The time of a look-up can reveal only those; the rest is compared in
        # constant time.
        self._known: dict[bytes, tuple[ApiKey, Client]] = {}
        self.tenants: dict[TenantId, Tenant] = {}
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Keeps up with Redis until cancelled. While Redis is away, what was known stays known."""
        while True:
            try:
                await self.refresh()
            except StoreDown as exc:
                log.warning("keys_not_read", error=exc.message)
            except Exception:
                log.exception("keys_not_read")
            await asyncio.sleep(_EVERY_S)

    async def refresh(self) -> None:
        """Raises: StoreDown."""
        fields, tenants = await self._wire.execute(
            [("HGETALL", self._keys.api_keys()), ("HGETALL", self._keys.tenants())]
        )
        self.tenants = {tenant.name: tenant for tenant in _decoded(decode_tenant, tenants[1::2])}
        self._known = {key.digest[:_PREFIX]: (key, self._client(key)) for key in _decoded(decode_api_key, fields[1::2])}
        self.loaded.set()

    def check(self, scope: Scope) -> None:
        """Checks an HTTP request's key, and puts it into the scope. Raises: Unauthorized, StoreDown."""
        if is_open(scope["path"]):
            return
        given = given_key(scope)
        if not given:
            raise Unauthorized(headers=_CHALLENGE)
        if _first(scope["path"]) in _FOR_ADMINS and self._is_admin(given):
            scope[_ADMIN] = True
            return
        # A key is 256 random bits. Nobody can try them all, so a salt or a slow hash would protect nothing more.
        digest = hashlib.sha256(given).digest()
        key, client = self._known.get(digest[:_PREFIX], (None, NOBODY))
        if key is None or not hmac.compare_digest(key.digest, digest):
            if not self.loaded.is_set():  # a 401 would tell a client with a valid key that it is invalid
                raise StoreDown("The API keys could not be read from Redis yet. Try again.")
            raise Unauthorized("This API key is not valid, or has been revoked.", headers=_CHALLENGE)
        scope[_IN_SCOPE] = key, client

    def _client(self, key: ApiKey) -> Client:
        tenant = self.tenants.get(key.tenant) or Tenant(key.tenant)
        return Client(tenant, key.owner, key.name, key.limits)

    def _is_admin(self, given: bytes) -> bool:
        return self._admin_key is not None and hmac.compare_digest(given, self._admin_key)

    def key(self, scope: Scope) -> ApiKey | None:
        """The key that `check` found; None: there was none."""
        key: ApiKey | None = scope.get(_IN_SCOPE, (None, NOBODY))[0]
        return key

    def client(self, scope: Scope) -> Client:
        """Who sent the request with the key that `check` found, or nobody in particular."""
        client: Client = scope.get(_IN_SCOPE, (None, NOBODY))[1]
        return client

    def client_of(self, tenant: TenantId, key: KeyId) -> Client:
        """Whose a request is that came before: its limits are those of today, and a revoked key has none."""
        known = next((client for _, client in self._known.values() if client.key == key), None)
        return known or Client(self.tenants.get(tenant) or Tenant(tenant), key)

    def owner(self, scope: Scope) -> KeyId:
        """The owner of a request with the key that `check` found; empty without one."""
        return self.client(scope).key

    def sees(self, scope: Scope) -> KeyId | None:
        """Whose requests the client may see; None: everybody's."""
        return None if scope.get(_ADMIN) else self.owner(scope)

    def allowance(self, scope: Scope) -> Quota | None:
        """The limits of the key that `check` found; None: it has none, or there was no key."""
        key = self.key(scope)
        rate = key.rate if key is not None else None
        return Quota(self._wire, self._keys, rate) if rate is not None else None


def _decoded(decode: Callable[[bytes], T], records: Iterable[bytes]) -> Iterable[T]:
    for record in records:
        try:
            yield decode(record)
        except msgspec.DecodeError as exc:  # a bad record locks out only its own client
            log.error("key_not_understood", error=str(exc))
