"""The files of the console, read once: they need no internet, no build, and no key, since they show nothing."""

import hashlib
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from app.settings import Settings

_HEADERS = {
    # Nothing from elsewhere, nothing inline, no frame around it. Pictures and sound of chats are data: and blob: URLs.
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; media-src data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # it asks each time, and gets a 304: no page has parts of two versions
}
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PAGES = ("", "/fleet", "/batches", "/tenants", "/usage")  # one document: the browser shows the page of its address


class _Asset(NamedTuple):
    body: bytes
    kind: str
    etag: str

    def response(self, request: Request) -> Response:
        headers = {**_HEADERS, "etag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.kind, headers=headers)


def _read(settings: Settings) -> dict[str, _Asset]:
    assets = {}
    for file in (files(__package__) / "static").iterdir():
        _, dot, ending = file.name.rpartition(".")
        if kind := _KINDS.get(dot + ending):
            body = file.read_bytes()
            if ending == "html":
                body = body.replace(b'="/console', f'="{settings.root_path}/console'.encode())
                body = body.replace(b'data-keys=""', f'data-keys="{_keys(settings)}"'.encode())
            assets[file.name] = _Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return assets


def _keys(settings: Settings) -> str:
    """The kinds of keys that are of any use: the pages ask for no other."""
    admins = bool(settings.admin_keys) or settings.oidc_admin is not None
    return " ".join([*(["api"] if settings.require_keys else []), *(["admin"] if admins else [])])


def console(settings: Settings) -> APIRouter:
    """The routes of the console's files, below /console."""
    assets = _read(settings)
    router = APIRouter(prefix="/console", include_in_schema=False)

    async def page(request: Request) -> Response:
        return assets["index.html"].response(request)

    for path in _PAGES:
        router.add_api_route(path, page)

    @router.get("/static/{name}")
    async def asset(request: Request, name: str) -> Response:
        if name not in assets:
            raise HTTPException(404)
        return assets[name].response(request)

    return router
