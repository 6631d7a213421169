"""Trust in servers and proxies in front: the headers that are used, and the senders from which they are taken."""

from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import pytest
from starlette.types import Receive, Scope, Send

from app.api.http.front import Front
from app.api.http.origin import Allowed
from app.api.intake.fast_path import FastPath
from app.settings import Settings

FORWARDED = {
    "x-forwarded-for": "198.51.100.7, 10.0.0.2",
    "x-forwarded-proto": "https",
    "x-forwarded-host": "api.example",
}


def seen(peer: str, path: str = "/v1/models", headers: dict[str, str] = FORWARDED, **settings: Any) -> dict[str, Any]:
    front = Front.of(Settings(**settings))
    fields = {"host": "inner:8000", **headers}.items()
    scope = {
        "client": (peer, 1234),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in fields],
    }
    if front is not None:
        front.read(scope)
    return scope


def host(scope: dict[str, Any]) -> bytes:
    (host_name,) = (value for name, value in scope["headers"] if name == b"host")
    return bytes(host_name)


def test_without_a_setting_there_is_nothing_to_read() -> None:
    assert Front.of(Settings()) is None


@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.1", "fd00::5"])
def test_a_trusted_proxy_says_who_its_client_is(peer: str) -> None:
    """The address may be shown as an IPv6 one, by a socket of both families."""
    scope = seen(peer, trusted_proxies="10.0.0.0/8,fd00::/8")
    assert scope["client"][0] == "198.51.100.7"
    assert (scope["scheme"], host(scope)) == ("https", b"api.example")


def test_what_a_client_claims_before_the_first_proxy_is_not_believed() -> None:
    """Each proxy adds whom it saw at the end; what stands before that is what the client sent."""
    headers = {"x-forwarded-for": "127.0.0.1, 198.51.100.7, 10.0.0.2"}
    assert seen("10.0.0.1", headers=headers, trusted_proxies="10.0.0.0/8")["client"][0] == "198.51.100.7"


def test_a_stranger_is_not_believed() -> None:
    """A stranger could otherwise choose the host that is checked, and the address that is bounded."""
    scope = seen("192.0.2.1", trusted_proxies="10.0.0.0/8")
    assert (scope["client"][0], scope["scheme"], host(scope)) == ("192.0.2.1", "http", b"inner:8000")


@pytest.mark.parametrize(("path", "own"), [
    ("/llm/v1/models", "/v1/models"), ("/llm", "/"), ("/llm/", "/"), ("/v1/models", "/v1/models"),
    ("/llmx/v1/models", "/llmx/v1/models"),
])  # fmt: skip
def test_a_base_path_is_taken_away_if_the_proxy_did_not(path: str, own: str) -> None:
    scope = seen("192.0.2.1", path, root_path="/llm")
    assert (scope["path"], scope["raw_path"]) == (own, own.encode())


@pytest.mark.parametrize(("raw", "name"), [
    (b"/x/a%2F", "/x/a/"), (b"/x/a%2F?b=/", "/x/a/"), (b"/x/a%2F/", "/x/a/"), (b"/x/a/", "/x/a"),
    (b"/x/a/?b=c", "/x/a"), (None, "/x/a"),
])  # fmt: skip
async def test_only_a_literal_slash_at_a_paths_end_is_taken_away(raw: bytes | None, name: str) -> None:
    """An encoded one is part of a name. Some servers give no raw path, or one with the query."""
    paths: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])

    app.state = SimpleNamespace(xylem=SimpleNamespace(settings=SimpleNamespace(require_keys=False), tracer=None))  # type: ignore[attr-defined]
    path = "/x/a/" if raw is None else unquote(raw.partition(b"?")[0].decode())
    scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", b"localhost")]}
    scope |= {} if raw is None else {"raw_path": raw}
    await FastPath(cast(Any, app), {}, Allowed(frozenset(), None))(scope, cast(Any, None), cast(Any, None))
    assert paths == [name]
