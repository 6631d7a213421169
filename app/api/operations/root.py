"""GET /: browsers are sent to the console, others get the addresses of what is here."""

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.api.http.answered import answers
from app.api.operations.answer_types import Addresses
from app.api.state import state_of

router = APIRouter(tags=["service"])
_VARIES = {"vary": "accept"}


@router.get("/", response_model=Addresses, responses=answers(Addresses) | {307: {"description": "To the console"}})
async def list_addresses(request: Request, response: Response) -> Addresses | Response:
    """The paths of the API, its documentation and the console; a browser is sent to the latter."""
    settings = state_of(request).settings
    base, console = settings.root_path, f"{settings.root_path}/console"
    if settings.console and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(console, headers=_VARIES)
    response.headers.update(_VARIES)
    addresses: Addresses = {
        "api": f"{base}/v1",
        "models": f"{base}/v1/models",
        "docs": f"{base}/docs",
        "openapi": f"{base}/openapi.json",
        "ready": f"{base}/ready",
    }
    if settings.console:
        addresses["console"] = console
    return addresses
