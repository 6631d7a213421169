"""POST /tokenize and /detokenize, in vLLM's shapes."""

from typing import Any

from fastapi import APIRouter, Request

from app.api.body import collect
from app.api.models import find_model
from app.api.parsing import parse
from app.api.schemas import DetokenizeRequest, TokenizeRequest
from app.api.state import state_of
from app.errors import RequestError

router = APIRouter()


@router.post("/tokenize", openapi_extra=TokenizeRequest.openapi())
async def tokenize(request: Request) -> dict[str, Any]:
    """The token ids of a prompt or of a conversation."""
    state = state_of(request)
    body = parse(TokenizeRequest, await collect(request.scope, request.receive, state.settings.max_body))
    model = find_model(state.models, body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Give either 'prompt' or 'messages'.", param="prompt")
    if body.messages is not None:
        messages = [m.for_template() for m in body.messages]
        ids = await model.encode_chat(messages, add_generation_prompt=body.add_generation_prompt)
    else:
        ids = await model.encode(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
    return {"count": len(ids), "max_model_len": model.context_len, "tokens": ids}


@router.post("/detokenize", openapi_extra=DetokenizeRequest.openapi())
async def detokenize(request: Request) -> dict[str, Any]:
    """The text of token ids."""
    state = state_of(request)
    body = parse(DetokenizeRequest, await collect(request.scope, request.receive, state.settings.max_body))
    model = find_model(state.models, body.model)
    if body.tokens:
        model.check_tokens(body.tokens)
    return {"prompt": model.tokenizer.decode(body.tokens, skip_special_tokens=False)}
