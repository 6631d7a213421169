"""Requests: OpenAI's shapes and a few extensions.

A field that is neither here nor in `neutral.py` is refused by name, unless it is null, which OpenAI's clients send
for "not given".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from app.dispatch.inflight import RoutingHints
from app.errors import RequestError
from app.messages.job import Sampling
from app.messages.kept import StoredChat
from app.openai.beams import BeamFields
from app.openai.content_parts import TextPart
from app.openai.conversation import Message, Messages
from app.openai.prompt import PromptRequest
from app.openai.structured import StructuredRequest
from app.schemas.body import MOST, Body, NamesModel, Some
from app.schemas.neutral import NEUTRAL_OF_TOKENIZE, Refused, neutral

Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]
_TOKEN_ID = re.compile("[0-9]{1,9}", re.ASCII)
Stop = Annotated[str, Field(min_length=1, max_length=4096)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Label = Annotated[str, Field(max_length=64)]
Metadata = Annotated[dict[Label, Annotated[str, Field(max_length=512)]], Field(max_length=16)]
MOST_BIASES = 2**16  # of all prompts of a request together: each prompt's job has all of them
MOST_LOGPROBS = 20_480  # of prompts' tokens in one answer: they come in one message, which is decoded at once
ASIDE_PRIORITY = 100  # of aside requests that name none


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # has no effect: nothing is obfuscated


class RoutingOptions(Body):
    """Extension: a request's own parameters of routing."""

    prefill_weight: Annotated[float, Field(ge=0, le=100)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    ttft_ms: Annotated[float, Field(gt=0)] | None = None  # targets, for deployments that have pools for them
    itl_ms: Annotated[float, Field(gt=0)] | None = None


class ModelRequest(NamesModel):
    """The base of all requests to a model. None always means "not given"."""

    # The fields with defaults in a model's own configuration.
    DEFAULTED: ClassVar[tuple[str, ...]] = ("temperature", "top_p", "presence_penalty", "frequency_penalty")

    user: Annotated[str, Field(max_length=512)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None  # extension: lower is sooner
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None  # extension: seconds
    service_tier: Literal["auto", "default", "flex"] | None = None
    # The client's own notes, without effect.
    metadata: Metadata | None = None
    safety_identifier: Label | None = None

    def filled(self, defaults: Mapping[str, float]) -> Self:
        """The request with these values for fields that are not given."""
        if not defaults:
            return self
        values = {n: defaults[n] for n in self.DEFAULTED if n in defaults and getattr(self, n) is None}
        return self.model_copy(update=values) if values else self

    def with_priority(self, priority: int) -> Self:
        return self.model_copy(update={"priority": priority})

    @property
    def aside(self) -> bool:
        return self.service_tier == "flex"

    @property
    def tier(self) -> Literal["default", "flex"] | None:
        """The service tier that it gets; None if it named none."""
        return None if self.service_tier is None else "flex" if self.aside else "default"

    @property
    def urgency(self) -> int:
        return self.priority if self.priority is not None else ASIDE_PRIORITY if self.aside else 0

    def check(self) -> None:
        """Checks of several fields together. Raises: RequestError."""

    def wishes(self, *, explain: bool) -> RoutingHints:
        return RoutingHints(explain=explain)


class GenerationRequest(ModelRequest):
    """The base of all requests that generate."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    prompt_cache_key: Annotated[str, Field(min_length=1, max_length=256)] | None = None  # requests that share a prefix
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None  # vLLM's: only equal ones share KV
    routing: RoutingOptions | None = None

    def wishes(self, *, explain: bool) -> RoutingHints:
        routing = self.routing
        if routing is None:
            return RoutingHints(session=self.prompt_cache_key, explain=explain)
        rules = {name: getattr(routing, name) for name in ("prefill_weight", "temperature")}
        return RoutingHints(
            rules={name: value for name, value in rules.items() if value is not None},
            session=self.prompt_cache_key,
            ttft_ms=routing.ttft_ms,
            itl_ms=routing.itl_ms,
            explain=explain,
        )

    @property
    def kept(self) -> bool:
        """Whether its answer is kept, to be fetched later."""
        return False

    def stored_chat(self) -> StoredChat | None:
        """The fields by which clients find it among their stored chats; None if it is not stored."""
        return None

    def understood(self) -> bytes:
        """The fields on which the answer depends, as JSON that parses to an equal request."""
        return self.model_dump_json(exclude_none=True, by_alias=True).encode()


class _CompletionsRequest(GenerationRequest, StructuredRequest, BeamFields):
    """The base of chat and text completions."""

    DEFAULTED = (*GenerationRequest.DEFAULTED, "top_k", "min_p", "repetition_penalty")

    max_tokens: Annotated[int, Field(ge=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    include_stop_str_in_output: bool | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MOST)] | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None

    def check(self) -> None:
        """Checks of several fields together. Raises: RequestError."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("'prompt_logprobs' is not available in a stream.", param="prompt_logprobs")
        self.check_beams()

    def check_logprobs(self, tokens: int) -> None:
        """`tokens`: of all prompts. Raises: RequestError for more logprobs of these than one message may have."""
        if self.prompt_logprobs is not None and tokens * (self.prompt_logprobs + 1) * (self.n or 1) > MOST_LOGPROBS:
            raise RequestError(
                f"'prompt_logprobs': at most {MOST_LOGPROBS} for all tokens of all prompts, in all choices together.",
                param="prompt_logprobs",
            )

    def sampling(self, max_tokens: int, *, logprobs: int | None, prompt_logprobs: int | None = None) -> Sampling:
        """Raises: RequestError."""
        if (self.min_tokens or 0) > max_tokens:
            raise RequestError(f"'min_tokens' is over 'max_tokens' ({max_tokens}).", param="min_tokens")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        sampling = Sampling(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens or 0,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            seed=self.seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop=bool(self.include_stop_str_in_output),
            ignore_eos=bool(self.ignore_eos),
            n=self.n or 1,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs if prompt_logprobs is None else prompt_logprobs,
            logit_bias=self._logit_bias(self.logit_bias) if self.logit_bias else None,
            special_tokens=self.skip_special_tokens is False,
        )
        return self.searched(sampling)

    @staticmethod
    def _logit_bias(biases: Mapping[str, float]) -> dict[int, float]:
        if not all(_TOKEN_ID.fullmatch(key) for key in biases):
            raise RequestError("The keys of 'logit_bias' have to be token ids.", param="logit_bias")
        return {int(token): bias for token, bias in biases.items()}


class Conversation(_CompletionsRequest, PromptRequest):
    messages: Annotated[Sequence[Message], Field(min_length=1, max_length=MOST)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def check(self) -> None:
        super().check()
        self.check_prompt(self.messages)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")


class Prediction(Body):
    """A text that much of the answer is expected to repeat. Changes no answer."""

    type: Literal["content"]
    content: Annotated[Some[TextPart], Field(max_length=MOST)] | str

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


@neutral()
class ChatRequest(Conversation):
    prediction: Annotated[Prediction | None, Refused()] = None  # only for models whose engine drafts from prompts
    messages: Annotated[Messages, Field(min_length=1, max_length=MOST)]
    store: bool | None = None
    include_reasoning: bool | None = None

    @property
    def kept(self) -> bool:
        return bool(self.store)

    def stored_chat(self) -> StoredChat | None:
        return StoredChat(self.model, self.metadata or {}) if self.store else None


@neutral()
class CompletionRequest(_CompletionsRequest):
    prompt: str | Some[TokenId] | Some[str] | Some[Some[TokenId]] | None = None
    # vLLM's: base64 of a safetensors file each, whose rows are a prompt. Their choices come before those of `prompt`.
    prompt_embeds: str | Some[str] | None = None
    echo: bool | None = None
    add_special_tokens: Annotated[Literal[True] | None, Refused()] = None  # in conversations, False is neutral
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def embeds(self) -> list[str]:
        value = self.prompt_embeds
        return [value] if isinstance(value, str) else value or []

    def check(self) -> None:
        """Checks of several fields together. Raises: RequestError."""
        super().check()
        if not self.embeds:
            if self.prompt is None:
                raise RequestError("'prompt' is missing.", param="prompt")
            return
        # Nobody knows the text or the tokens of such a prompt.
        for name, is_given in (("echo", bool(self.echo)), ("prompt_logprobs", self.prompt_logprobs is not None)):
            if is_given:
                raise RequestError(f"'{name}' can't be used with 'prompt_embeds'.", param=name)


@neutral(NEUTRAL_OF_TOKENIZE)
class TokenizeRequest(PromptRequest, NamesModel):
    prompt: str | None = None
    messages: Annotated[Messages, Field(max_length=MOST)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Checks of several fields together. Raises: RequestError."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("Give either 'prompt' or 'messages'.", param="prompt")
        self.check_prompt(self.messages or ())


class DetokenizeRequest(NamesModel):
    tokens: Some[TokenId]
