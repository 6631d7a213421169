"""Whether a request is accepted, by its headers: the host, the web page it comes from, its body's type.

A browser sends the requests of any page to any address, also to this machine's own. It names the page in `Origin`. When
the page's own name resolves to this machine (DNS rebinding), the origin looks like ours, but `Host` shows the name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from app.addresses.host_names import is_named
from app.errors import HostRefused, OriginRefused, UnsupportedMediaType
from app.settings import ANY, Settings

Headers = Mapping[bytes, bytes]

_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}
_JSON, _FORM, _BINARY = b"application/json", b"multipart/form-data", b"application/octet-stream"
# The paths that take one.
_FORMS = {"/v1/files", "/v1/images/edits", "/v1/videos", "/v1/audio/transcriptions", "/v1/audio/translations"}


@dataclass(frozen=True)
class Allowed:
    origins: frozenset[bytes]  # besides the server's own
    hosts: frozenset[str] | None  # besides loopback's; None: hosts are not checked

    @classmethod
    def of(cls, settings: Settings) -> Self:
        hosts = settings.allowed_hosts
        checks_hosts = ANY not in hosts and (hosts or settings.on_loopback)
        return cls(
            frozenset(origin.encode() for origin in settings.allowed_origins),
            frozenset(host.strip("[]") for host in hosts) if checks_hosts else None,
        )


def admit(origins: Allowed, headers: Headers) -> bytes:
    """The allowed foreign origin of a request; empty: it has none. Raises: HostRefused, OriginRefused."""
    host = headers.get(b"host", b"").lower()
    if host and origins.hosts is not None and not is_named(host.decode("latin-1"), origins.hosts):
        raise HostRefused(f"The host {_shown(host)} is not this server: XYLEM_ALLOWED_HOSTS has its names.")
    origin = headers.get(b"origin")
    if origin is None or _is_same(origin, host):
        return b""
    if ANY.encode() in origins.origins:
        return b"*"
    if origin in origins.origins:
        return origin
    raise OriginRefused(
        f"Pages of the origin {_shown(origin)} may not use this server: XYLEM_ALLOWED_ORIGINS has those that may."
    )


def granted(origin: bytes) -> list[tuple[bytes, bytes]]:
    """The headers by which a browser lets a page of another origin read a response."""
    return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"*"), (b"vary", b"Origin")]


def preflight(method: str, headers: Headers) -> dict[str, str]:
    """The headers that answer a browser's question what an allowed page may send; empty for other requests."""
    if method != "OPTIONS" or b"access-control-request-method" not in headers:
        return {}
    return {
        "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
        "access-control-allow-headers": headers.get(b"access-control-request-headers", b"").decode("latin-1"),
        "access-control-max-age": "600",
    }


def check_body(method: str, path: str, headers: Headers) -> None:
    """Raises: UnsupportedMediaType."""
    if not headers.get(b"content-length", b"").strip(b"0") and b"transfer-encoding" not in headers:
        return
    encoding = headers.get(b"content-encoding", b"")
    if encoding.lower() not in (b"", b"identity"):
        raise UnsupportedMediaType(
            f"A body with 'Content-Encoding: {encoding.decode('latin-1')}' is not supported: send it unencoded.",
            headers={"accept-encoding": "identity"},
        )
    content_type = headers.get(b"content-type", b"")
    # With other methods, a browser asks before it sends anything for a foreign page, whatever the type.
    if content_type == _JSON or method != "POST":
        return
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == _JSON or (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return
    # Triton's client names no type. Browsers ask before they send bytes, and name the origin of what has no type.
    if path.startswith("/v2/") and (kind == _BINARY or (not kind and b"origin" not in headers)):
        return
    expected_type = "multipart/form-data" if path in _FORMS else "application/json"
    if kind != _FORM or path not in _FORMS:
        raise UnsupportedMediaType(f"The body's Content-Type has to be {expected_type}, and is {_shown(content_type)}.")


def _is_same(origin: bytes, host: bytes) -> bool:
    """Whether host and port are the same. The schemes differ where a proxy ends TLS."""
    scheme, _, site = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and site != b"" and site.removesuffix(port) == host.removesuffix(port)


def _shown(value: bytes) -> str:
    return repr(value[:200].decode("latin-1"))
