"""POST /tokenize and /detokenize, in vLLM's shapes."""

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from app.api.http.answered import answers
from app.api.intake.request_body import collect
from app.api.state import asking_of, state_of
from app.dispatch.asking import Asking
from app.dispatch.media.media_reader import Samples
from app.openai.media import load_media, named_media, origins_of
from app.openai.media_prompt import counted, markers_of
from app.openai.prompt import chat_prompt, tokenizer_of
from app.openai.schemas import DetokenizeRequest, TokenizeRequest
from app.schemas.validation import parse_off_loop

router = APIRouter(tags=["tokens"])
_ID = 12  # bytes of a token id in a body, with its separators
_REST = 64 * 2**10  # bytes of a body besides token ids


class Tokenized(TypedDict, closed=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class Detokenized(TypedDict, closed=True):
    prompt: str


@router.post("/tokenize", openapi_extra=TokenizeRequest.openapi(), responses=answers(Tokenized))
async def tokenize(request: Request) -> Response:
    """The token ids of a prompt or of a conversation, which need not fit the context."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    asking = asking_of(state, request.scope)
    body = await asking.served(await parse_off_loop(TokenizeRequest, raw), None)
    messages = body.messages or ()
    model = asking.find_model(body.model, task=None)
    samples = await load_media(asking, model, *await state.off_loop(raw, lambda: named_media(messages)))
    return _json(
        await state.off_loop(raw, lambda: _tokenized(asking, body, samples), waits=body.chat_template is not None)
    )


@router.post("/detokenize", openapi_extra=DetokenizeRequest.openapi(), responses=answers(Detokenized))
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    state = state_of(request)
    most = max((model.most_tokens for model in state.models.values()), default=0) * _ID + _REST
    raw = await collect(request.scope, request.receive, min(most, state.settings.max_body))
    asking = asking_of(state, request.scope)
    body = await asking.served(await parse_off_loop(DetokenizeRequest, raw, state.longest_context), None)
    return _json(await state.off_loop(raw, lambda: _detokenized(asking, body)))


def _tokenized(asking: Asking, body: TokenizeRequest, samples: Samples) -> bytes:
    model = asking.find_model(body.model, task=None)
    body.check()
    if body.messages is not None:
        tokenizer = tokenizer_of(model.tokenizer, body, trusted=asking.serving.settings.request_chat_templates)
        text = chat_prompt(tokenizer, body.messages, body, markers_of(model, samples), samples)
        ids = counted(model, text, origins_of(body.messages), samples)
    else:
        ids = model.count(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
    strings = [model.tokenizer.raw.id_to_token(id_) for id_ in ids] if body.return_token_strs else None
    answer: Tokenized = {
        "count": len(ids),
        "max_model_len": model.context_len,
        "tokens": ids,
        "token_strs": strings,
    }
    return orjson.dumps(answer)


def _detokenized(asking: Asking, body: DetokenizeRequest) -> bytes:
    model = asking.find_model(body.model, task=None)
    if body.tokens:
        model.check_tokens(body.tokens)
    answer: Detokenized = {"prompt": model.tokenizer.decode(body.tokens, skip_special_tokens=False)}
    return orjson.dumps(answer)


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")
