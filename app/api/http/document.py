"""The OpenAPI document: FastAPI's, with the key that each endpoint needs; and its pages, without the internet."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from app.api.api_keys import is_open, wants_admin_key
from app.settings import Settings

_DOCUMENT, _STATIC = "/openapi.json", "/docs/static"
_KEY, _ADMIN = "api_key", "admin_key"
# The tag of an operation, of which each has one: clients that are made of the document have a class or module for each.
FAMILIES = {
    "chats": "Conversations, OpenAI's way: answered whole or streamed, and those that are stored.",
    "completions": "Texts and tokens that go on.",
    "responses": "OpenAI's Responses, also in the background.",
    "conversations": "Conversations that Responses continue.",
    "messages": "Anthropic's Messages, and batches of them.",
    "embeddings": "Vectors, scores, rankings and classes of texts.",
    "images": "Pictures: painted, edited, fetched.",
    "videos": "Videos: painted as jobs, and fetched.",
    "audio": "Speech: transcribed and translated.",
    "inference": "The Open Inference Protocol, as KServe and Triton have it.",
    "tokens": "Texts to tokens and back.",
    "files": "Files, for batches.",
    "batches": "Many requests in a file, answered when there is room.",
    "usage": "Who has used how much, and what it cost.",
    "service": "Models, health, metrics, and what became of a request.",
    "pools": "For operators: limits, sleep, pause, weights, caches and aliases.",
    "adapters": "For operators: LoRA adapters.",
    "prefixes": "For operators: prompts whose KV is kept.",
    "tenants": "For operators: teams, their keys, limits and prices, and the log of changes.",
    "erasures": "For operators: removing all that is kept for a key or a team.",
    "fleet": "For operators: what the console shows.",
}
_WHOSE = {_KEY: "An API key: `xylem keys create`", _ADMIN: "XYLEM_ADMIN_KEY"}
_WAYS = {
    "": {"type": "http", "scheme": "bearer"},
    "_x": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "_azure": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_SCHEMES = {
    key + way: {**scheme, "description": whose} for key, whose in _WHOSE.items() for way, scheme in _WAYS.items()
}


def documented(settings: Settings, **options: Any) -> FastAPI:
    """A FastAPI app with /docs, /redoc and /openapi.json, whose assets lie under /docs."""
    root = settings.root_path
    app = FastAPI(
        openapi_url=None,
        servers=[{"url": root or "/"}],
        openapi_tags=[{"name": name, "description": meaning} for name, meaning in FAMILIES.items()],
        generate_unique_id_function=lambda route: (
            route.name
        ),  # a function is named for the clients made of the document
        **options,
    )
    app.mount(_STATIC, StaticFiles(packages=[("fastapi_offline", "static")]))
    app.add_route(_DOCUMENT, _making(app, settings), include_in_schema=False)
    _add_pages(app, root)
    return app


def _making(app: FastAPI, settings: Settings) -> Callable[[Request], Awaitable[Response]]:
    """The document is made once, for the first who asks, in a thread: it takes a second or two, and needs no key."""
    making: asyncio.Task[Response] | None = None

    def make() -> Response:
        document = app.openapi()
        with_keys(document, settings)
        return JSONResponse(document)

    async def give(_request: Request) -> Response:
        nonlocal making
        if making is None:
            making = asyncio.create_task(asyncio.to_thread(make))
        return await asyncio.shield(making)

    return give


def _add_pages(app: FastAPI, root: str) -> None:
    document, static = f"{root}{_DOCUMENT}", f"{root}{_STATIC}"
    swagger = get_swagger_ui_html(
        openapi_url=document,
        title=f"{app.title} - Swagger UI",
        swagger_js_url=f"{static}/swagger-ui-bundle.js",
        swagger_css_url=f"{static}/swagger-ui.css",
        swagger_favicon_url=f"{static}/favicon.png",
    )
    redoc = get_redoc_html(
        openapi_url=document,
        title=f"{app.title} - ReDoc",
        redoc_js_url=f"{static}/redoc.standalone.js",
        redoc_favicon_url=f"{static}/favicon.png",
        with_google_fonts=False,
    )
    for path, page in (("/docs", swagger), ("/redoc", redoc)):
        app.add_route(path, _giving(page), include_in_schema=False)


def _giving(page: Response) -> Callable[[Request], Response]:
    return lambda _request: page


def with_keys(document: dict[str, Any], settings: Settings) -> None:
    """Adds the security schemes; where no key is required, it is optional."""
    document.setdefault("components", {})["securitySchemes"] = _SCHEMES
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = _wanted(path, settings)


def _wanted(path: str, settings: Settings) -> list[Mapping[str, list[str]]]:
    if wants_admin_key(path):
        return _any_way(_ADMIN, needed=bool(settings.admin_key))
    if is_open(path):
        return []
    return _any_way(_KEY, needed=settings.require_keys)


def _any_way(key: str, *, needed: bool) -> list[Mapping[str, list[str]]]:
    ways: list[Mapping[str, list[str]]] = [{key + way: []} for way in _WAYS]
    return ways if needed else [*ways, {}]
