"""Triton's extension for the model repository over HTTP: /v2/repository."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.http.answered import refused
from app.api.intake.request_body import SHORT_BODY, collect
from app.api.kserve import repository
from app.api.operations.admin import Admin
from app.api.operations.audited_route import AuditedRoute
from app.api.state import state_of
from app.endpoints import LARGE
from app.kserve.answer_types import IndexEntry, InferenceRefusal
from app.kserve.repository import IndexBody, LoadBody, UnloadBody
from app.schemas.validation import B, parse_off_loop

router = APIRouter(prefix="/v2/repository", responses=refused(InferenceRefusal), tags=["inference"])
changes = APIRouter(
    prefix="/v2/repository/models", tags=["inference"], route_class=AuditedRoute, responses=refused(InferenceRefusal)
)


@router.post("/index", openapi_extra=IndexBody.openapi())
async def list_repository(request: Request) -> list[IndexEntry]:
    """The models, whether or not a worker is up. `ready`: only those that a worker serves now."""
    body = await _body(request, IndexBody)
    return await repository.index(state_of(request), request.scope, ready_only=body.ready)


@changes.post("/{name:path}/load", response_class=Response, openapi_extra=LoadBody.openapi())
async def load_model(request: Request, state: Admin, name: str) -> None:
    """Wakes the model's workers. Answers when they take requests."""
    await _body(request, LoadBody)
    await repository.load(state, name)


@changes.post("/{name:path}/unload", response_class=Response, openapi_extra=UnloadBody.openapi())
async def unload_model(request: Request, state: Admin, name: str) -> None:
    """Puts the model's workers to sleep. Answers when they do."""
    await _body(request, UnloadBody)
    await repository.unload(state, name)


async def _body(request: Request, schema: type[B]) -> B:
    """The body, which may be empty. Raises: RequestError, BodyTooLarge."""
    raw = request.scope[SHORT_BODY] = await collect(request.scope, request.receive, LARGE)
    return await parse_off_loop(schema, raw or b"{}")
