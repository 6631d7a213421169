"""The valid API keys, in this process's memory: a request costs one SHA-256 and one look into a dict."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import SecretStr
from starlette.types import Scope

from app.bounded.turns import CLIENT
from app.errors import StoreDown, Unauthorized
from app.ids import KeyId
from app.keys import Keys
from app.store import Wire, clock
from app.tenants.directory import PREFIX, Directory
from app.tenants.limit_table import TenantLimits
from app.tenants.records import NOBODY, ApiKey, Client
from app.tenants.registry import Registry

if TYPE_CHECKING:  # loaded if there is an issuer
    from app.api.oidc.login import Login
    from app.tenants.tokens import Verified

_MOST_TOKENS = 10_000
# First parts of paths that need no API key: they show nothing of prompts and answers, or check a key of their own.
# All others need one, so that a new endpoint is closed until somebody opens it here.
_OPEN = {"live", "health", "ready", "metrics", "sd", "version", "docs", "redoc", "openapi.json", "admin", "console"}
# vLLM's names for endpoints under /admin, and OpenAI's.
_WITH_ADMIN_KEY = {
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/organization/usage/completions",
}
_REPOSITORY = "/v2/repository/models/"  # below it models are loaded and unloaded, with the admin key
_OPEN_PATHS = {*_WITH_ADMIN_KEY, "/", "/v2/health/live", "/v2/health/ready"}
_FOR_ADMINS = {"requests"}  # also take the admin key, for which they show the requests of all clients
_ADMIN = "xylem.admin"
_IN_SCOPE = "xylem.key"
_CHALLENGE = {"www-authenticate": "Bearer"}  # RFC 9110 requires it with a 401
_HEADERS = (b"authorization", b"x-api-key", b"api-key")  # the first one with a key counts


def given_key(scope: Scope) -> bytes:
    """The key in `Authorization: Bearer`, `x-api-key` or, from Azure's clients, `api-key`; empty: there is none."""
    for header in _HEADERS:
        credential = next((value for name, value in scope["headers"] if name == header), b"")
        if header == b"authorization":
            scheme, _, token = credential.partition(b" ")
            credential = token if scheme.lower() == b"bearer" else b""
        if key := credential.strip():
            return key
    return b""


def is_open(path: str) -> bool:
    return _first(path) in _OPEN or path in _OPEN_PATHS or path.startswith(_REPOSITORY)


def wants_admin_key(path: str) -> bool:
    return _first(path) == "admin" or path in _WITH_ADMIN_KEY or path.startswith(_REPOSITORY)


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


class ApiKeys(Directory):
    def __init__(
        self, wire: Wire, keys: Keys, admin_keys: Sequence[SecretStr] = (), login: "Login | None" = None
    ) -> None:
        """`login`: takes tokens of an issuer in place of keys."""
        super().__init__(wire, keys)
        self._login = login
        self._admin_keys = [key.get_secret_value().encode() for key in admin_keys]
        self._by_token: dict[bytes, Client] = {}  # by the token's digest
        self._tokens_of: Registry = self.registry  # that these clients are of
        self._noted: set[KeyId] = set()  # owners by tokens that are in `keys:owners`

    @property
    def issues_admins(self) -> bool:
        """Whether a token may be an admin's."""
        return self._login is not None and self._login.claims.admin is not None

    def check(self, scope: Scope) -> None:
        """Checks an HTTP request's key, and puts it into the scope. Raises: Unauthorized, StoreDown.

        A token is taken if `admit` has seen it before.
        """
        if is_open(scope["path"]):
            return
        credential = given_key(scope)
        if not credential:
            raise Unauthorized(headers=_CHALLENGE)
        # A key is 256 random bits. Nobody can try them all, so a salt or a slow hash would protect nothing more.
        self._take(scope, credential, hashlib.sha256(credential).digest())

    def _take(self, scope: Scope, credential: bytes, digest: bytes) -> None:
        """Raises: Unauthorized, Forbidden, StoreDown."""
        if _first(scope["path"]) in _FOR_ADMINS and self._is_admin(credential):
            scope[_ADMIN] = True
            return
        key, client = self._known.get(digest[:PREFIX], (None, NOBODY))
        if key is None or not hmac.compare_digest(key.digest, digest):
            if self._login is not None and (token := self._login.known(digest)) is not None:
                key, client = None, self._client_with(digest, token)
            elif not self.loaded.is_set():  # a 401 would tell a client with a valid key that it is invalid
                raise StoreDown("The API keys could not be read from Redis yet. Try again.")
            else:
                raise Unauthorized("This API key is not valid, or has been revoked.", headers=_CHALLENGE)
        if client.within.expires is not None and client.within.expires <= clock.now():
            whose = "API key" if client.limits.expires == client.within.expires else "tenant's access"
            raise Unauthorized(f"This {whose} has expired.", headers=_CHALLENGE)
        scope[_IN_SCOPE] = key, client
        CLIENT.set(client.turn)

    async def admit(self, scope: Scope) -> None:
        """Checks as `check` does, and also new tokens. Raises: Unauthorized, Forbidden, IssuerDown, StoreDown."""
        login = self._login
        if login is not None and not is_open(scope["path"]) and login.takes(credential := given_key(scope)):
            digest = hashlib.sha256(credential).digest()
            if login.known(digest) is None and digest[:PREFIX] not in self._known and not self._is_admin(credential):
                await login.verify(digest, credential)
            self._take(scope, credential, digest)
            await self._note_owner(self.client(scope))
        else:
            self.check(scope)

    async def _note_owner(self, client: Client) -> None:
        """Notes the tenant of somebody who comes with tokens. Raises: StoreDown.

        A tenant has no list of them. By this note, what they make is erased with the tenant.
        """
        if client.key and client.key not in self._noted and not self.knows(client.key):
            if len(self._noted) >= _MOST_TOKENS:
                self._noted.clear()
            await self._wire.execute([("HSET", self._keys.key_owners(), client.key, client.tenant.name)])
            self._noted.add(client.key)

    def forget_owners(self, owners: Iterable[KeyId]) -> None:
        """Forgets owners that are being erased with their notes. What they make from now on is noted anew."""
        self._noted.difference_update(owners)

    async def admin(self, scope: Scope) -> str | None:
        """The admin who sent a request; None: no admin did. Raises: Unauthorized, IssuerDown, for a token."""
        credential = given_key(scope)
        if self._is_admin(credential):
            return "admin key"
        if self._login is None or not self.issues_admins or not self._login.takes(credential):
            return None
        digest = hashlib.sha256(credential).digest()
        identity = self._login.known(digest) or await self._login.verify(digest, credential)
        return f"oidc: {identity.subject}" if identity.is_admin else None

    def _client_with(self, digest: bytes, token: "Verified") -> Client:
        """Raises: Forbidden."""
        if self._tokens_of is not self.registry:
            self._by_token, self._tokens_of = {}, self.registry
        if (earlier_client := self._by_token.get(digest)) is not None:
            return earlier_client
        assert self._login is not None
        if not self.loaded.is_set():
            raise StoreDown("The tenants could not be read from Redis yet. Try again.")
        tenant = self._login.tenant(token, self.registry.tenants)
        if len(self._by_token) >= _MOST_TOKENS:
            self._by_token.clear()
        client = self._made(tenant, token.owner, token.subject, TenantLimits(models=token.models))
        self._by_token[digest] = client
        return client

    def _is_admin(self, credential: bytes) -> bool:
        return any(hmac.compare_digest(credential, key) for key in self._admin_keys)

    def key(self, scope: Scope) -> ApiKey | None:
        """The key that `check` found; None: there was none."""
        key: ApiKey | None = scope.get(_IN_SCOPE, (None, NOBODY))[0]
        return key

    def client(self, scope: Scope) -> Client:
        """The client that sent the request with the key that `check` found, or nobody in particular."""
        client: Client = scope.get(_IN_SCOPE, (None, NOBODY))[1]
        return client

    def owner(self, scope: Scope) -> KeyId:
        """The owner of a request with the key that `check` found; empty without one."""
        return self.client(scope).key

    def sees(self, scope: Scope) -> KeyId | None:
        """The owner whose requests the client may see; None: it may see everybody's."""
        return None if scope.get(_ADMIN) else self.owner(scope)
