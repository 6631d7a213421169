"""An `https:` URL, read strictly. Pure."""

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import idna

from app.media.refused import Refused
from app.settings import ANY

_MOST = 8192  # characters; a signed URL of a cloud store has two thousand
_PORT = 443
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
# "127.1", "2130706433" and "0x7f000001" are addresses too, for a resolver.
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_BAD = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")


class Target(NamedTuple):
    """The target of a request: what is asked for, and of whom."""

    host: str  # in ASCII and lower case; an IPv6 address without brackets
    port: int
    path: str  # with its query

    @property
    def authority(self) -> str:
        """The host and port as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORT else f"{host}:{self.port}"


def parse_url(url: str, hosts: Collection[str], *, files: bool = False) -> Target:
    """`hosts`: those allowed, as XYLEM_MEDIA_HOSTS has them. `files`: `file:` is taken too. Raises: Refused."""
    if len(url) > _MOST:
        raise Refused(f"its URL has more than {_MOST} characters")
    if _BAD.search(url):
        raise Refused("its URL has spaces, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = _PORT if parts.port is None else parts.port
    except ValueError as exc:
        raise Refused("its URL can't be read") from exc
    if parts.scheme != "https":
        raise Refused(f"its URL has to begin with {'https:, data: or file:' if files else 'https: or data:'}")
    if "@" in parts.netloc:
        raise Refused("its URL has a user or a password")
    host, literal = _host(parts.hostname or "", bracketed="[" in parts.netloc)
    target = Target(host, port, _path(parts.path or "/", parts.query))
    if target.authority not in hosts and (ANY not in hosts or literal or port != _PORT):
        what = "an address in place of a name" if literal else f"the port {port}" if port != _PORT else "this host"
        raise Refused(f"{what} isn't allowed in its URL (XYLEM_MEDIA_HOSTS)")
    return target


def redirected(target: Target, location: str, hosts: Collection[str]) -> Target:
    """The target to which a `Location` leads. Raises: Refused, by the same rules."""
    try:
        url = urljoin(f"https://{target.authority}{target.path}", location)
    except ValueError as exc:
        raise Refused("its host redirects to a URL that can't be read") from exc
    try:
        return parse_url(url, hosts)
    except Refused as exc:
        raise Refused(f"its host redirects to another URL, and {exc}") from exc


def _host(text: str, *, bracketed: bool) -> tuple[str, bool]:
    """The host, and whether it is an address. Raises: Refused."""
    bad = Refused("its URL has no host that can be read")
    if bracketed:
        try:
            if "%" in text:  # a zone: an interface of this machine
                raise bad
            return str(ip_address(text)), True
        except ValueError as exc:
            raise bad from exc
    if not text or len(text) > 255:
        raise bad
    try:
        host = text if text.isascii() else idna.encode(text, uts46=True).decode()
    except (idna.IDNAError, UnicodeError) as exc:
        raise bad from exc
    host = host.lower().removesuffix(".")
    if not _NAME.fullmatch(host):
        raise bad
    return host, _NUMBER.fullmatch(host.rpartition(".")[2]) is not None


def _path(path: str, query: str) -> str:
    """The path in ASCII; what is encoded already stays as it is."""
    whole = f"{path}?{query}" if query else path
    return "".join(char if char.isascii() else "".join(f"%{byte:02X}" for byte in char.encode()) for char in whole)
