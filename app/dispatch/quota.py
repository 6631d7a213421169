"""An API key's limits of requests and tokens a minute, over all API replicas."""

import math

from app.errors import RateLimited
from app.keys import Keys
from app.store import CHARGE, Wire
from app.tenants.records import Rate


class Quota:
    """One request's charges. A charge repeated after a broken connection counts twice: rare, and never too little."""

    def __init__(self, wire: Wire, keys: Keys, rate: Rate) -> None:
        self._wire, self._spent = wire, keys.spent(rate.account)
        self._limits, self._spared = {"requests": rate.requests, "tokens": rate.tokens}, rate.spared
        self._left: dict[str, float] = {}
        self._admitted = False

    async def admit(self, prompt_tokens: int) -> None:
        """Charges a request and its prompt; only the first call does. Raises: RateLimited, StoreDown."""
        if self._admitted:
            return
        refused = await self._charge(1, prompt_tokens)
        if refused:
            limit = self._limits[refused]
            error = RateLimited(
                f"This API key has used up its {limit} {refused} a minute. Try again later.",
                retry_after_s=max(1, math.ceil(self._short_s(refused))),
                headers=self.headers(),
            )
            error.type = refused
            raise error
        self._admitted = True

    async def spend(self, answer_tokens: int) -> None:
        """Charges an answer, even beyond the limit. Raises: StoreDown."""
        if self._limits["tokens"] and answer_tokens:
            await self._charge(0, answer_tokens, anyhow=True)

    def headers(self) -> dict[str, str]:
        """OpenAI's x-ratelimit headers, as of the last charge."""
        found = {}
        for kind, left in self._left.items():
            limit = self._limits[kind]
            found[f"x-ratelimit-limit-{kind}"] = str(limit)
            found[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(left)))
            found[f"x-ratelimit-reset-{kind}"] = f"{(limit - left) * 60 / limit:.3f}s"  # until the limit is whole again
        return found

    def _short_s(self, refused: str) -> float:
        """Seconds until enough of that limit is left."""
        limit = self._limits[refused]
        return (max(1, limit * self._spared) - self._left[refused]) * 60 / limit

    async def _charge(self, requests: int, tokens: int, *, anyhow: bool = False) -> str:
        """The limit that refused, or ''. `anyhow`: charge even beyond the limit. Raises: StoreDown."""
        limits = self._limits
        command = (
            *("EVAL", CHARGE, 1, self._spent),
            *(limits["requests"], requests, limits["tokens"], tokens, "" if anyhow else self._spared),
        )
        ((refused, *left),) = await self._wire.execute([command])
        self._left = {kind: float(n) for kind, n in zip(limits, left, strict=True) if limits[kind]}
        return str(refused.decode())
