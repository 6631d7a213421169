"""POST /v1/messages and /v1/messages/count_tokens."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.anthropic.messages import count
from app.anthropic.schemas import CountRequest, MessagesRequest
from app.api.anthropic import answer_schemas
from app.api.intake.request_body import collect
from app.api.openai.completions import answer
from app.api.state import asking_of, state_of
from app.endpoint_registry import MESSAGE

router = APIRouter()


@router.post(MESSAGE.path, openapi_extra=MessagesRequest.openapi(), responses=answer_schemas.MESSAGE)
async def create(request: Request) -> Response:
    """An answer to a conversation, streamed or whole, in Anthropic's shape."""
    return await answer(MESSAGE, request)


@router.post(f"{MESSAGE.path}/count_tokens", openapi_extra=CountRequest.openapi(), responses=answer_schemas.COUNTED)
async def count_tokens(request: Request) -> dict[str, int]:
    """The number of tokens in the prompt of such a request."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return {"input_tokens": await count(asking_of(state, request.scope), raw)}
