"""A prefix that is to be cached before it is asked for: what a body means."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated

from pydantic import Field

from app.dispatch.asking import Asking
from app.dispatch.models.models import Model
from app.errors import RequestError
from app.openai.conversation import AssistantMessage, Message, Messages, PromptMessage
from app.openai.media import params_of
from app.openai.model_parser import check_dialect
from app.openai.prompt import PromptRequest, chat_prompt, tokenizer_of
from app.openai.schemas import TokenId
from app.schemas.body import MOST, NamesModel, Some
from app.schemas.neutral import Refused

_KINDS = ("text", "messages", "tokens")
_WORDS = ("a", "1")  # two messages that have nothing in common
_AND_ANSWER = 2  # tokens that have to fit behind it: one of the prompt, and one that is generated


class NewPrefix(PromptRequest, NamesModel):
    """Exactly one of `text`, `messages` and `tokens`; with `messages` also `tools` and the like, as in chats."""

    text: Annotated[str, Field(min_length=1)] | None = None  # as the prompt of a completion
    messages: Annotated[Messages, Field(min_length=1, max_length=MOST)] | None = None  # with which chats begin
    tokens: Annotated[Some[TokenId], Field(min_length=1)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None  # of the requests that are to find it
    pools: Annotated[list[str], Field(max_length=256)] = Field(default_factory=list)  # none: all of the model
    copies: Annotated[int, Field(ge=1, le=10_000)] | None = None  # on how many workers of each pool; null: all
    pin_s: Annotated[float, Field(ge=0, le=365 * 86_400)] = 0.0  # how long it is kept; 0: it is computed once
    wait_s: Annotated[float, Field(ge=0, le=60)] = 30.0  # for the caches, before this is answered
    # A prefix ends where both begin.
    add_generation_prompt: Annotated[None, Refused()] = None
    continue_final_message: Annotated[None, Refused()] = None

    @property
    def param(self) -> str:
        """The field that says what it is."""
        return next((kind for kind in _KINDS if getattr(self, kind) is not None), _KINDS[0])

    def check(self) -> None:
        """Checks of several fields together. Raises: RequestError."""
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise RequestError(f"Give one of {', '.join(_KINDS)}.", param=kinds[-1] if kinds else _KINDS[0])
        if self.messages is None:
            of_chats = PromptRequest.model_fields.keys() & self.model_fields_set
            if strange := sorted(name for name in of_chats if getattr(self, name) is not None):
                raise RequestError(f"'{strange[0]}' is only allowed with 'messages'.", param=strange[0])
        elif media := params_of(self.messages):
            raise RequestError(f"'{media[0]}': a prefix is text only.", param=media[0])
        self.check_prompt(self.messages or ())


def prefix_tokens(asking: Asking, body: NewPrefix) -> list[int]:
    """The prefix's tokens, as requests that begin so have them. Raises: XylemError."""
    model = asking.find_model(body.model)
    body.check()
    if body.messages is not None:
        tokens = _shared(asking, model, body, body.messages)
    elif body.text is not None:
        tokens = model.encode(body.text, "text")
    else:
        tokens = body.tokens or []
    model.check_input(tokens, body.param)
    model.room(tokens, _AND_ANSWER, body.param)
    return tokens


def _shared(asking: Asking, model: Model, body: NewPrefix, messages: Sequence[Message]) -> list[int]:
    """The tokens that all chats begin with that begin with these messages.

    Templates differ in what comes between two messages.
    """
    check_dialect(model, body)
    tokenizer = tokenizer_of(model.tokenizer, body, trusted=asking.serving.settings.request_chat_templates)
    expects_answer = messages[-1].role in ("user", "tool", "function")  # the model's answer is next
    nexts: list[list[Message]] = [[]] if expects_answer else []  # with the prompt to generate it
    for word in _WORDS:
        one = (
            AssistantMessage(role="assistant", content=word)
            if expects_answer
            else PromptMessage(role="user", content=word)
        )
        nexts.append([one])
    prompts = [
        model.encode(chat_prompt(tokenizer, [*messages, *more], body), "messages", add_special_tokens=False)
        for more in nexts
    ]
    return [first for first, *_ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))]
