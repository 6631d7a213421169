"""The URL at which a client reaches this server."""

from starlette.types import Scope

from app.settings import Settings


def own_url(settings: Settings, scope: Scope) -> str:
    """XYLEM_PUBLIC_URL, or as the request says; without a slash at its end."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    return f"{scope['scheme']}://{host}{settings.root_path}"
