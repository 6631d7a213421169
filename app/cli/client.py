"""Talking to a running API."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from app.cli.report import refuse

Url = Annotated[str, typer.Option("--url", help="Where the API is; XYLEM_PORT of this machine if not given.")]
Key = Annotated[str | None, typer.Option("--key", envvar="XYLEM_API_KEY", help="An API key, if the API requires one.")]
AdminKey = Annotated[
    str | None, typer.Option("--key", envvar="XYLEM_ADMIN_KEY", help="The admin's key; `xylem up`'s own if not given.")
]
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
HERE = f"http://127.0.0.1:{os.environ.get('XYLEM_PORT') or 8000}"


class ApiError(Exception):
    """The API refused."""

    def __init__(self, message: str, status: int = 0) -> None:
        """`status`: of HTTP; 0: it came amid a stream."""
        super().__init__(message)
        self.status = status


def admin_key(url: str, key: str | None) -> str | None:
    """The key, or that of the `xylem up` of this user that listens there."""
    if key is not None or urlsplit(url).hostname not in _LOOPBACK:
        return key
    from app.cli.running_system import SIGN_IN_KEY
    from app.settings import load_settings

    file = load_settings(port=urlsplit(url).port or 80).run_folder / SIGN_IN_KEY
    try:
        return file.read_text().strip()
    except OSError:
        return None


@contextmanager
def connected(url: str, key: str | None) -> Iterator[Any]:
    """An httpx client. When the API refuses or can't be reached, the command ends with one line that says so."""
    import httpx

    # No proxies: the API is near. Tokens may take long, connecting may not.
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(None, connect=5), trust_env=False) as client:
        try:
            yield client
        except httpx.TransportError as exc:
            refuse(f"no server at {url} ({exc}); start one with: xylem up", code=1)
        except ApiError as exc:
            refuse(str(exc), code=1)


def checked(response: Any) -> Any:
    """The JSON of a response. Raises: ApiError."""
    if response.is_error:
        raise ApiError(reason(response), response.status_code)
    return response.json()


def reason(response: Any) -> str:
    """The API's error message, and for want of a key where a command takes it."""
    hint = " (--key, or XYLEM_API_KEY)" if response.status_code == 401 else ""
    try:
        return str(response.json()["error"]["message"]) + hint
    except (ValueError, LookupError, TypeError):
        return f"the server at {response.url.host}:{response.url.port} answered {response.status_code}; is it Xylem?"


def first_model(client: Any) -> str:
    """The name of the API's first model. Raises: ApiError."""
    return str(checked(client.get("/v1/models"))["data"][0]["id"])
