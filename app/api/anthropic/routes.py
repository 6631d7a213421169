"""POST /v1/messages and /v1/messages/count_tokens."""

from typing import get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.anthropic.answer_types import AnthropicRefusal, Event, Message, TokenCount
from app.anthropic.messages import count
from app.anthropic.schemas import CountRequest, MessagesRequest
from app.api.http.answered import answered, refused
from app.api.intake.request_body import collect
from app.api.openai.completions import answer
from app.api.state import asking_of, state_of
from app.endpoint_registry import MESSAGE

router = APIRouter(responses=refused(AnthropicRefusal), tags=["messages"])
_MESSAGE = answered(Message, *get_args(Event), AnthropicRefusal)


@router.post(MESSAGE.path, openapi_extra=MessagesRequest.openapi(), responses=_MESSAGE)
async def create_message(request: Request) -> Response:
    """An answer to a conversation, streamed or whole, in Anthropic's shape."""
    return await answer(MESSAGE, request)


@router.post(f"{MESSAGE.path}/count_tokens", openapi_extra=CountRequest.openapi())
async def count_tokens(request: Request) -> TokenCount:
    """The number of tokens in the prompt of such a request."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return {"input_tokens": await count(asking_of(state, request.scope), raw)}
