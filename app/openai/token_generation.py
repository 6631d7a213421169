"""vLLM's generation of token ids from token ids: what a body means, and what its answer looks like."""

from typing import Annotated, Any, Literal, NotRequired

import orjson
from pydantic import Field
from typing_extensions import TypedDict

from app import json_bytes
from app.dispatch.generation_base import GenerationBase
from app.errors import RequestError
from app.messages.deltas import merge
from app.messages.events import Delta, TokenLogprob
from app.messages.kinds import FinishReason
from app.openai.answer_types import ChatLogprobs, PromptLogprobs, Usage
from app.openai.completion_writer import DONE
from app.openai.envelope import usage
from app.openai.logprobs import chat_logprobs, prompt_logprobs
from app.openai.schemas import CompletionRequest, ModelRequest, StreamOptions, TokenId
from app.schemas.answers import absent_means
from app.schemas.body import Some
from app.schemas.neutral import neutral
from app.schemas.validation import validated

Mode = Literal["tokens", "text"]
# Of vLLM's sampling parameters, those that say how its own processes hand over an answer.
_INTERNAL = {"detokenize", "output_kind", "skip_clone", "output_text_buffer_length", "flat_logprobs", "extra_args"}
_MOST_PARAMETERS = 256  # more than there are
# vLLM's of this endpoint, each with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "content_parts": ([],),
    "ec_transfer_params": (),
    "features": (),
    "kv_transfer_params": (),
    "reasoning_ended": (),
    "reasoning_parser_kwargs": (),
    "token_offsets": (),
}


@neutral(_NEUTRAL)
class GenerateRequest(ModelRequest):
    token_ids: Annotated[Some[TokenId], Field(min_length=1)]
    sampling_params: Annotated[dict[str, Any], Field(max_length=_MOST_PARAMETERS)]
    request_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    output_mode: Mode | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def as_completion(self) -> bytes:
        """The body of a completion. Raises: RequestError, which names the place in this one."""
        options = {name: value for name, value in self.sampling_params.items() if name not in _INTERNAL}
        own = self.model_dump(exclude_none=True, include=set(ModelRequest.model_fields))
        own |= {"prompt": self.token_ids, "cache_salt": self.cache_salt, "stream": self.stream}
        if self.stream_options is not None:
            own["stream_options"] = self.stream_options.model_dump(exclude_none=True)
        for name in sorted(options.keys() & CompletionRequest.model_fields.keys() & (own.keys() | {"echo"})):
            where = f"sampling_params.{name}"
            raise RequestError(f"'{where}' is no sampling parameter.", param=where)
        doc = {name: value for name, value in (options | own).items() if value is not None}
        try:
            validated(CompletionRequest, doc).check()
        except RequestError as exc:
            raise self.placed(exc) from exc
        return json_bytes.dumps(doc)

    def placed(self, exc: RequestError) -> RequestError:
        """A completion's error, naming the place in this request."""
        name = exc.param or ""
        first = name.partition(".")[0]
        if first == "prompt":
            where = f"token_ids{name.removeprefix(first)}"
        elif first in self.sampling_params or first == "max_tokens":
            where = f"sampling_params.{name}"
        else:
            return exc
        return RequestError(exc.message.replace(f"'{name}'", f"'{where}'", 1), param=where)


class LikelyToken(TypedDict, closed=True):
    token_id: int
    logprob: float
    rank: int | None


class ChosenToken(TypedDict, closed=True):
    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[LikelyToken]  # itself first


class TokenLogprobs(TypedDict, closed=True):
    content: list[ChosenToken]


class Choice(TypedDict, closed=True):
    index: int
    token_ids: list[int]
    text: NotRequired[Annotated[str, absent_means("")]]  # in the mode `text`
    logprobs: TokenLogprobs | ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None


class _Chunk(TypedDict):
    request_id: str
    output_mode: Mode
    choices: list[Choice]
    prompt_token_ids: NotRequired[list[int]]  # once, if they were asked for
    usage: NotRequired[Usage]


class Chunk(_Chunk, closed=True):
    pass


class Generated(_Chunk, closed=True):
    model: str
    created: int  # seconds since the epoch
    prompt_logprobs: PromptLogprobs | None


class TokensWriter:
    """Writes an answer, whole or as server-sent events."""

    def __init__(self, call: GenerationBase, body: GenerateRequest) -> None:
        self._call, options = call, body.stream_options
        self._mode: Mode = body.output_mode or "tokens"
        self._prompt, self._name = bool(body.return_token_ids), body.request_id or call.id
        self._usage_at_end = bool(options and options.include_usage)
        self._usage_always = bool(options and options.continuous_usage_stats)

    async def whole(self) -> Generated:
        """Raises: the error that ended it."""
        return await self._call.made(self._made, await self._call.whole())

    def opening(self, _choices: int, /) -> bytes:
        """Nothing: the first chunk has the prompt, if it was asked for."""
        return b""

    def delta(self, choice: int, d: Delta, /) -> bytes:
        chunk: Chunk = {
            "request_id": self._name,
            "output_mode": self._mode,
            "choices": [self._choice(choice, d)],
        }
        if self._first():
            chunk["prompt_token_ids"] = self._call.prompts[0]
        if self._usage_always:
            chunk["usage"] = usage(self._call)
        return _event(chunk)

    async def settle(self) -> None:
        """Nothing is to be done at the end."""

    def last(self) -> bytes:
        if not self._usage_at_end:
            return DONE
        end: Chunk = {
            "request_id": self._name,
            "output_mode": self._mode,
            "choices": [],
            "usage": usage(self._call),
        }
        return _event(end) + DONE

    def _made(self, deltas: list[tuple[int, Delta]]) -> Generated:
        choices = sorted(merge(deltas))
        answer: Generated = {
            "request_id": self._name,
            "output_mode": self._mode,
            "model": self._call.model.name,
            "created": self._call.created,
            "choices": [self._choice(choice, d) for choice, d in choices],
            "prompt_logprobs": None if choices[0][1].prompt_logprobs is None else prompt_logprobs(choices[0][1]),
        }
        if self._first():
            answer["prompt_token_ids"] = self._call.prompts[0]
        answer["usage"] = usage(self._call)
        return answer

    def _first(self) -> bool:
        """Whether the prompt's token ids are wanted, and not told yet."""
        is_first, self._prompt = self._prompt, False
        return is_first

    def _choice(self, index: int, d: Delta) -> Choice:
        if self._mode == "text":
            return {
                "index": index,
                "token_ids": d.tokens,
                "text": d.text,
                "logprobs": chat_logprobs(d),
                "finish_reason": d.finish,
                "stop_reason": d.stop,
            }
        return {
            "index": index,
            "token_ids": d.tokens,
            "logprobs": None if d.logprobs is None else {"content": [_by_id(lp) for lp in d.logprobs]},
            "finish_reason": d.finish,
            "stop_reason": d.stop,
        }


def _event(chunk: Chunk) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(chunk)


def _by_id(lp: TokenLogprob) -> ChosenToken:
    """A token's logprob without texts; the token itself is the first of its alternatives."""
    own: LikelyToken = {"token_id": lp.token_id, "logprob": lp.logprob, "rank": lp.rank or None}
    likely: list[LikelyToken] = [
        {"token_id": token, "logprob": logprob, "rank": rank} for rank, (_, token, logprob) in enumerate(lp.top, 1)
    ]
    own["rank"] = own["rank"] or next((one["rank"] for one in likely if one["token_id"] == lp.token_id), None)
    return {**own, "top_logprobs": [own, *(one for one in likely if one["token_id"] != lp.token_id)]}
