"""The OpenAPI document: FastAPI's, with the key that each endpoint needs; and its pages, without the internet."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi_offline import FastAPIOffline
from starlette.responses import Response

from app.api.api_keys import is_open, wants_admin_key
from app.settings import Settings

_STATIC = "/docs/static"
_KEY, _ADMIN = "api_key", "admin_key"
_WHOSE = {_KEY: "An API key: `xylem keys create`", _ADMIN: "XYLEM_ADMIN_KEY"}
_WAYS = {
    "": {"type": "http", "scheme": "bearer"},
    "_x": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "_azure": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_SCHEMES = {
    key + way: {**scheme, "description": whose} for key, whose in _WHOSE.items() for way, scheme in _WAYS.items()
}


def documented(settings: Settings, **given: Any) -> FastAPI:
    """A FastAPI app with /docs, /redoc and /openapi.json, whose assets lie under /docs."""
    root = settings.root_path
    # Its own pages take the root from the scope, where Starlette would look for it in each path.
    app = FastAPIOffline(docs_url=None, redoc_url=None, static_url=_STATIC, servers=[{"url": root or "/"}], **given)
    _add_pages(app, root)
    found = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            with_keys(found(), settings)  # FastAPI keeps the document in `openapi_schema`
        return found()

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _add_pages(app: FastAPI, root: str) -> None:
    document, static = f"{root}{app.openapi_url}", f"{root}{_STATIC}"
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
