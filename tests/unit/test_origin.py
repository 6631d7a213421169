"""Admission of hosts, web pages and bodies, by the headers alone."""

from typing import Any

import pytest

from app.api.http.origin import Allowed, admit, check_body, granted, preflight
from app.errors import HostRefused, OriginRefused, UnsupportedMediaType
from app.settings import Settings
from tests.refusals import settings_error

APP = "https://app.example"
LENGTH = {b"content-length": b"2"}


def allowed(**given: Any) -> Allowed:
    return Allowed.of(Settings(**given))


def admitted(given: Allowed, host: str | None = None, origin: str | None = None) -> bytes:
    headers = {b"host": host, b"origin": origin}
    return admit(given, {name: value.encode() for name, value in headers.items() if value is not None})


@pytest.mark.parametrize("host", [
    None, "", "localhost", "LocalHost:8000", "localhost.", "localhost.:8000", "127.0.0.1:8000", "127.255.1.2", "[::1]",
    "[::1]:8000",
])  # fmt: skip
def test_loopbacks_own_names_are_always_hosts_of_this_server(host: str | None) -> None:
    """The port doesn't matter, nor does its absence; no browser leaves the header out."""
    for own in ("127.0.0.1", "::1", "localhost"):
        assert admitted(allowed(host=own), host) == b""
    assert admitted(allowed(allowed_hosts="api.example", host="10.0.0.1"), host) == b""


@pytest.mark.parametrize("host", [
    "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.evil", "127.0.0.1@evil.example", "0.0.0.0",
    "[::2]:80", "192.168.0.1:8000", "localhost..", ":8000", ".", "\u00e9", "api.example.evil.example",
])  # fmt: skip
def test_other_host_names_are_refused(host: str) -> None:
    """The server is on loopback, or has a list of hosts."""
    for rules in (allowed(), allowed(host="10.0.0.1", allowed_hosts="api.example")):
        with pytest.raises(HostRefused):
            admitted(rules, host)


def test_hosts_are_checked_on_loopback_and_where_they_are_named() -> None:
    """A star switches it off, also for a tunnel to loopback."""
    assert admitted(allowed(host="0.0.0.0"), "evil.example") == b""
    assert admitted(allowed(allowed_hosts="*"), "evil.example") == b""
    rules = allowed(allowed_hosts=" api.example, [2001:DB8::1],b.example ,")
    for host in ("api.example", "API.EXAMPLE.:80", "[2001:db8::1]:80", "b.example", "localhost"):
        assert admitted(rules, host) == b""


@pytest.mark.parametrize(("origin", "host"), [
    ("http://localhost:8000", "localhost:8000"), ("https://api.example", "api.example"),
    ("https://api.example", "api.example:443"), ("http://api.example", "api.example:80"), ("http://[::1]:1", "[::1]:1"),
    ("https://api.example:80", "API.example:80"), ("https://API.example", "api.example"),
])  # fmt: skip
def test_the_same_origin_is_always_allowed(origin: str, host: str) -> None:
    """The host and port decide: a proxy that ends TLS speaks another scheme to us."""
    assert admitted(allowed(host="0.0.0.0"), host, origin) == b""


@pytest.mark.parametrize(("origin", "host"), [
    ("http://localhost:3000", "localhost:8000"), ("http://localhost:8000", "127.0.0.1:8000"), ("null", "null"),
    ("", ""), ("", "localhost"), ("http://", ""), ("localhost:8000", "localhost:8000"), ("http://localhost", None),
    ("app://localhost", "localhost"), ("http://localhost:443", "localhost"), ("https://localhost:80", "localhost"),
    ("http://evil.example http://localhost", "localhost"), (APP + ".evil.example", "localhost"),
    (APP + ":1", "localhost"),
])  # fmt: skip
def test_any_other_origin_is_foreign(origin: str, host: str | None) -> None:
    with pytest.raises(OriginRefused):
        admitted(allowed(host="0.0.0.0", allowed_origins=APP), host, origin)


def test_foreign_origins_are_allowed_by_name() -> None:
    """Exactly those, or all of them."""
    rules = allowed(allowed_origins="https://APP.example, app://obsidian.md")
    assert admitted(rules, "localhost", APP) == APP.encode()
    assert admitted(rules, "localhost", "app://obsidian.md") == b"app://obsidian.md"
    assert dict(granted(APP.encode()))[b"access-control-allow-origin"] == APP.encode()
    assert admitted(allowed(allowed_origins="*"), "localhost", "null") == b"*"
    with pytest.raises(HostRefused):  # which no origin makes good
        admitted(rules, "evil.example", APP)


def test_only_a_browsers_question_is_a_preflight() -> None:
    headers = {b"access-control-request-method": b"POST", b"access-control-request-headers": b"x-a, x-b"}
    assert preflight("OPTIONS", headers)["access-control-allow-headers"] == "x-a, x-b"
    assert preflight("POST", headers) == {}
    assert preflight("OPTIONS", {}) == {}


@pytest.mark.parametrize(("setting", "value"), [
    ("allowed_origins", "app.example"), ("allowed_origins", "https://app.example/"), ("allowed_origins", "null"),
    ("allowed_origins", "https://*.app.example/x"), ("allowed_hosts", "api.example:8000"),
    ("allowed_hosts", "https://api.example"), ("allowed_hosts", "::1"),
])  # fmt: skip
def test_what_no_browser_sends_is_a_mistake_in_a_setting(
    setting: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named, with the value: it would never match."""
    monkeypatch.setenv(f"XYLEM_{setting.upper()}", f"ok://fine,{value}" if "origin" in setting else f"fine,{value}")
    assert f"XYLEM_{setting.upper()}: {value!r}" in settings_error()


@pytest.mark.parametrize(("method", "path", "headers"), [
    ("POST", "/x", {}),
    ("POST", "/x", {b"content-length": b"0"}),
    ("POST", "/x", LENGTH | {b"content-type": b"application/json"}),
    ("POST", "/x", LENGTH | {b"content-type": b" Application/JSON ; charset=utf-8"}),
    ("POST", "/x", LENGTH | {b"content-type": b"application/vnd.api+json"}),
    ("POST", "/x", LENGTH | {b"content-type": b"application/json", b"content-encoding": b"Identity"}),
    ("POST", "/v1/files", LENGTH | {b"content-type": b"multipart/form-data; boundary=x"}),
    ("POST", "/v2/models/m/infer", LENGTH | {b"content-type": b"application/octet-stream"}),
    ("POST", "/v2/models/m/infer", LENGTH),
    ("PATCH", "/x", LENGTH | {b"content-type": b"application/x-www-form-urlencoded"}),
])  # fmt: skip
def test_bodies_that_are_taken(method: str, path: str, headers: dict[bytes, bytes]) -> None:
    check_body(method, path, headers)


@pytest.mark.parametrize(("method", "path", "headers"), [
    ("POST", "/x", LENGTH),
    ("POST", "/x", {b"transfer-encoding": b"chunked"}),
    ("POST", "/x", LENGTH | {b"content-type": b"text/plain"}),
    ("POST", "/x", LENGTH | {b"content-type": b"text/plain, application/json"}),
    ("POST", "/x", LENGTH | {b"content-type": b"text/plain+json"}),
    ("POST", "/x", LENGTH | {b"content-type": b"multipart/form-data; boundary=x"}),
    ("POST", "/v1/files", LENGTH | {b"content-type": b"text/plain"}),
    ("POST", "/v2/models/m/infer", LENGTH | {b"content-type": b"text/plain"}),
    ("POST", "/v2/models/m/infer", LENGTH | {b"origin": b"http://localhost"}),
    ("POST", "/v1/completions", LENGTH | {b"content-type": b"application/octet-stream"}),
    ("POST", "/v1/files", {b"transfer-encoding": b"chunked"}),
    ("POST", "/x", LENGTH | {b"content-type": b"application/json", b"content-encoding": b"gzip"}),
    ("PATCH", "/x", LENGTH | {b"content-type": b"application/json", b"content-encoding": b"zstd"}),
])  # fmt: skip
def test_bodies_that_are_not(method: str, path: str, headers: dict[bytes, bytes]) -> None:
    with pytest.raises(UnsupportedMediaType):
        check_body(method, path, headers)
