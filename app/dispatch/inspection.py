"""What becomes of one request's contents besides its answer: the hook inspects them, and a tenant's log has them."""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from app.dispatch.content_hook import ContentHook
from app.dispatch.generation_plan import GenerationPlan
from app.errors import XylemError
from app.ids import RequestId
from app.messages import Delta
from app.telemetry import logger
from app.tenants.records import Client

log = logger(__name__)

Deltas = list[tuple[int, Delta]]
# By the beginning of its id, the endpoint of a request.
_ENDPOINTS = {
    "chatcmpl-": "/v1/chat/completions", "cmpl-": "/v1/completions", "resp_": "/v1/responses", "msg_": "/v1/messages",
    "embd-": "/v1/embeddings", "score-": "/v1/score", "rerank-": "/v1/rerank", "classify-": "/v1/classify",
    "embed-": "/v2/embed", "img-": "/v1/images", "video_": "/v1/videos", "transcr-": "/v1/audio/transcriptions",
}  # fmt: skip


class Inspection:
    """Of a request whose contents somebody else gets."""

    def __init__(
        self,
        request: RequestId,
        plan: GenerationPlan,
        client: Client,
        hook: ContentHook | None,
        names: dict[str, str],
        count: Callable[[Delta], None],
    ) -> None:
        """`names`: of the request, for the log. `count`: counts the tokens of a delta that nobody gets."""
        self._count = count
        self._request, self._plan, self._client, self._hook, self._names = request, plan, client, hook, names
        self._texts: dict[int, list[str]] = {}  # by choice

    async def prompt(self) -> None:
        """Before it is placed. Raises: ContentRefused, HookDown."""
        if self._hook is not None and "prompt" in self._hook.parts:
            await self._hook.check("prompt", self._asked, self._names)

    async def deltas(self, read: Callable[[], Awaitable[Deltas]]) -> Deltas:
        """What may be sent of what `read` returns: all of the answer at once, if the hook has to see it first.

        Raises: ContentRefused, HookDown.
        """
        out = await read()
        if self._hook is None or "answer" not in self._hook.parts:
            self._add(out)
            return out
        while more := await read():
            out += more
        self._add(out)
        if out:
            try:
                await self._hook.check("answer", self._answered, self._names)
            except XylemError:
                for _, delta in out:  # computed it was, and that is charged
                    self._count(delta)
                raise
        return out

    def _asked(self) -> dict[str, Any]:
        return self._who() | {"part": "prompt", "body": orjson.Fragment(self._body())}

    def _answered(self) -> dict[str, Any]:
        return self._who() | {"part": "answer", "answers": self.answers()}

    def answers(self) -> list[str]:
        """Each choice so far, as the model wrote it: with its reasoning, and calls of tools in its own notation."""
        return ["".join(self._texts[choice]) for choice in sorted(self._texts)]

    def log(self, outcome: str) -> None:
        """If the tenant has agreed to it."""
        if self._client.tenant.content_logged:
            said = {"body": self._body(), "answers": self.answers(), "outcome": outcome}
            log.info("content", **self._names, **self._who(), **said)

    def _add(self, deltas: Deltas) -> None:
        for choice, delta in deltas:
            self._texts.setdefault(choice, []).append(delta.text)

    def _who(self) -> dict[str, Any]:
        return {
            "request": self._request,
            "tenant": self._client.tenant.name,
            "key": self._client.name,
            "model": self._plan.model.name,
            "endpoint": _ENDPOINTS.get(self._plan.prefix, ""),
        }

    def _body(self) -> str:
        asked = self._plan.asked
        return "{}" if asked is None else str(asked.model_dump_json(exclude_none=True, by_alias=True))
