"""The issuer's public keys, fetched over HTTP. While it is away, those that were known hold."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import httpx

from app.errors import IssuerDown
from app.running.loops import keep
from app.telemetry import logger
from app.tenants.tokens import signing_keys

log = logger(__name__)

_OLD_S = 300.0  # after which they are fetched again
_LEAST_S = 5.0  # between two fetches, however many tokens name unknown keys
_TIMEOUT_S = 5.0  # of all of it
_MOST_BYTES = 2**20  # of an answer


class SigningKeys:
    def __init__(self, issuer: str, on_change: Callable[[], None], *, least_s: float = _LEAST_S) -> None:
        """`on_change`: is called when they are others than before."""
        self._issuer, self._changed, self._least_s = issuer, on_change, least_s
        self._client = httpx.AsyncClient(timeout=None, trust_env=False)  # noqa: S113 (`_update` has one)
        self._lock = asyncio.Lock()
        self._tried = -math.inf  # monotonic
        self.keys: list[dict[str, Any]] = []
        self.loaded = False

    async def run(self) -> None:
        """Fetches them again and again, until cancelled."""
        try:
            await keep("signing_keys_not_fetched", self._update, self._rest, issuer=self._issuer)
        finally:
            await self._client.aclose()

    async def _rest(self) -> None:
        await asyncio.sleep(_OLD_S if self.loaded else self._least_s)

    async def refresh(self) -> None:
        """Fetches them, unless that was tried a moment ago. Whatever the issuer says, those that were known hold."""
        try:
            await self._update()
        except IssuerDown as exc:
            log.warning("signing_keys_not_fetched", issuer=self._issuer, error=exc.message)

    async def _update(self) -> None:
        """Raises: IssuerDown."""
        async with self._lock:  # who waits finds that it was tried
            if time.monotonic() - self._tried >= self._least_s:
                try:
                    async with asyncio.timeout(_TIMEOUT_S):
                        await self._fetch()
                except Exception as exc:  # it may be anything, of any shape
                    raise IssuerDown(f"{type(exc).__name__}: {exc}") from exc
                finally:
                    self._tried = time.monotonic()

    async def _fetch(self) -> None:
        about = await self._get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        if about["issuer"] != self._issuer:
            raise ValueError(f"it calls itself {str(about['issuer'])[:200]!r}")
        keys = signing_keys(await self._get(about["jwks_uri"]))
        if not keys:
            raise ValueError("it has no key")
        self.loaded = True
        if keys != self.keys:
            self.keys = keys
            self._changed()

    async def _get(self, url: str) -> Any:
        if not url.startswith("https://") and not self._issuer.startswith("http://"):
            raise ValueError(f"{url[:200]!r} is not https")
        async with self._client.stream("GET", url) as response:
            response.raise_for_status()
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > _MOST_BYTES:
                    raise ValueError(f"{url[:200]!r} has more than {_MOST_BYTES} bytes")
        return httpx.Response(200, content=bytes(body)).json()

    def check_loaded(self) -> None:
        """Raises: IssuerDown."""
        if not self.loaded:
            raise IssuerDown
