"""The content hook: an HTTP server of the operator's that is asked whether a prompt, or an answer, may go on."""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal

import httpx
import orjson

from app.bounded.turns import Turns
from app.errors import ContentRefused, HookDown
from app.settings import Settings
from app.telemetry import INSPECTIONS, logger
from app.webhooks.signature import signed
from app.webhooks.tls import tls

log = logger(__name__)

Part = Literal["prompt", "answer"]
_CONNECTIONS = 100  # at once
_LONGEST = 2**20  # bytes of a reply
_REASON = 500  # characters of a reason that the client is shown
_LONGEST_PAUSE_S = 60.0


class _BadReply(Exception):
    """The hook has answered something else."""


class ContentHook:
    """The content hook as this process asks it, on the event loop. Connections are kept."""

    def __init__(self, settings: Settings) -> None:
        assert settings.hook_url is not None
        self._url, self.parts, self._open = settings.hook_url, settings.hook_parts, settings.hook_fail == "open"
        self._timeout_s = settings.hook_timeout_s
        self._secret = None if settings.hook_secret is None else settings.hook_secret.get_secret_value()
        self._turns = Turns(_CONNECTIONS, what="contents to be inspected")  # each client's: none has the others wait
        # Each of one connection: what a call takes grows with the square of a client's, to 17 ms of CPU with 100.
        self._idle: list[httpx.AsyncClient] = []

    async def check(self, part: Part, read: Callable[[], dict[str, Any]], names: dict[str, str]) -> None:
        """`read`: what it is asked about, made in a thread: it may be long. `names`: of the request, for the log.

        Raises: ContentRefused; HookDown, if nothing goes on without its answer; Saturated.
        """
        async with self._turns.turn():
            await self._check(part, read, names)

    async def _check(self, part: Part, read: Callable[[], dict[str, Any]], names: dict[str, str]) -> None:
        """Raises: ContentRefused, HookDown."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reason = await self._asked(await asyncio.to_thread(lambda: orjson.dumps(read())))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, _BadReply) as exc:
            INSPECTIONS.labels(part, "passed_unseen" if self._open else "unavailable").inc()
            log.warning("content_not_inspected", part=part, **names, error=type(exc).__name__)
            if self._open:
                return
            raise HookDown from exc
        INSPECTIONS.labels(part, "allowed" if reason is None else "refused").inc()
        if reason is not None:
            what = "This request's content" if part == "prompt" else "The answer's content"
            raise ContentRefused(f"{what} is not allowed here{f': {reason}' if reason else '.'}")

    async def _asked(self, body: bytes) -> str | None:
        """The reason why the content is refused; None: it is allowed. Raises: _BadReply, httpx.HTTPError."""
        headers = signed(self._secret, f"hook_{secrets.token_hex(12)}", int(time.time()), body)
        headers["accept-encoding"] = "identity"  # a short reply may decompress to one that fills the memory
        client = self._idle.pop() if self._idle else _client()
        try:
            async with client.stream("POST", self._url, content=body, headers=headers) as reply:
                encoding = reply.headers.get("content-encoding", "").strip().lower()
                if reply.status_code != 200 or encoding not in ("", "identity"):
                    raise _BadReply
                raw = bytearray()
                async for piece in reply.aiter_raw():
                    raw += piece
                    if len(raw) > _LONGEST:
                        raise _BadReply
        except BaseException:  # one that was cancelled may never again give its connection away
            await client.aclose()
            raise
        self._idle.append(client)
        return read_reply(bytes(raw))

    async def close(self) -> None:
        for client in self._idle:
            await client.aclose()


def pause_s(failures: int) -> float:
    """Seconds to wait before the hook is asked again after so many failures, one after the other."""
    return min(2.0 ** min(failures - 1, 32), _LONGEST_PAUSE_S)


def _client() -> httpx.AsyncClient:
    """Makes a client for the operator's own server: not through a proxy. `check` limits the time of a whole call."""
    return httpx.AsyncClient(verify=tls(), timeout=None, limits=httpx.Limits(max_connections=1), trust_env=False)  # noqa: S113 (a timeout is around it)


def read_reply(raw: bytes) -> str | None:
    """The reason why the content is refused; None: it is allowed. Raises: _BadReply."""
    try:
        reply = orjson.loads(raw)
    except ValueError as exc:
        raise _BadReply from exc
    if not isinstance(reply, dict) or not isinstance(is_allowed := reply.get("allow"), bool):
        raise _BadReply
    if is_allowed:
        return None
    reason = reply.get("reason")
    return reason[:_REASON].strip() if isinstance(reason, str) else ""
