"""One streamed chat of a replay, with its times, and the requests that measure a server's tokenizer."""

import asyncio
import time
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from app.cli.client import ApiError, checked, reason
from app.cli.event_lines import event_lines_async
from app.cli.replaying.prompts import WORDS, Measure, sample

_PATH = "/v1/chat/completions"
_SHORT, _LONG = 1, 4  # times all words


class Outcome(Struct):
    """Times are in seconds from the replay's start; 0: not yet."""

    wanted_prompt: int  # tokens
    wanted_answer: int
    due: float
    sent: float = 0.0
    first: float = 0.0  # token
    ended: float = 0.0
    prompt: int = 0  # tokens, by the server's count
    cached: int | None = None  # of these; None: the server doesn't tell
    answer: int = 0
    error: str = ""

    @property
    def itl(self) -> float | None:
        """The mean time between its tokens, seconds; None: it has one only."""
        return (self.ended - self.first) / (self.answer - 1) if self.first and self.answer > 1 else None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Sender:
    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._extras: dict[str, Any] = {"ignore_eos": True}

    @property
    def keeps_lengths(self) -> bool:
        """Whether the server lets answers go on to their full length: it takes `ignore_eos`, which isn't OpenAI's."""
        return bool(self._extras)

    async def measure(self) -> Measure:
        """Two prompts, of 128 and 512 words, one token each. Raises: ApiError, httpx.TransportError."""
        pairs = []
        for times in (_SHORT, _LONG):
            body = self._body(sample(times), 1)
            response = await self._client.post(_PATH, json=body | self._extras)
            if response.status_code in (400, 422) and self._extras:
                self._extras = {}
                response = await self._client.post(_PATH, json=body)
            usage = checked(response).get("usage") or {}
            pairs.append((times * WORDS, int(usage.get("prompt_tokens") or 0)))
        try:
            return Measure.of(*pairs)
        except ValueError as exc:
            raise ApiError(str(exc)) from exc

    async def send(self, text: str, outcome: Outcome, start: float) -> None:
        """Fills `outcome`, whatever happens. `start`: the replay's start, by `time.perf_counter`."""
        stream_fields = {"stream": True, "stream_options": {"include_usage": True}}
        body = self._body(text, max(1, outcome.wanted_answer)) | stream_fields | self._extras
        outcome.sent = time.perf_counter() - start
        try:
            async with self._client.stream("POST", _PATH, json=body) as response:
                if response.is_error:
                    await response.aread()
                    raise ApiError(reason(response))
                await self._read(response, outcome, start)
            if not outcome.first:
                raise ApiError("an answer without a token")
        except (ApiError, httpx.HTTPError, msgspec.DecodeError) as exc:
            outcome.error = str(exc) or type(exc).__name__
        except asyncio.CancelledError:
            outcome.error = "interrupted"
            raise
        finally:
            outcome.ended = outcome.ended or time.perf_counter() - start

    async def _read(self, response: httpx.Response, outcome: Outcome, start: float) -> None:
        """Raises: ApiError, httpx.HTTPError, msgspec.DecodeError."""
        async for line in event_lines_async(response):
            data = line.removeprefix("data:").strip()
            if not line.startswith("data:") or data == "[DONE]":
                continue
            chunk = _decode(data)
            if chunk.error is not None:
                raise ApiError(str(chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error))
            if any(c.delta.content or c.delta.reasoning_content or c.delta.reasoning for c in chunk.choices):
                outcome.ended = time.perf_counter() - start
                outcome.first = outcome.first or outcome.ended
            if chunk.usage is not None:
                outcome.prompt, outcome.answer = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
                details = chunk.usage.prompt_tokens_details
                outcome.cached = None if details is None else details.cached_tokens

    def _body(self, text: str, tokens: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return {"model": self._model, "messages": messages, "max_tokens": tokens, "temperature": 0}
