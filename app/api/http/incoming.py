"""Bytes of large bodies that are on their way into this process: bounded for a key, a tenant and all."""

from starlette.types import Scope

from app.errors import BodyTooLarge, Saturated
from app.tenants.records import DEFAULT, Client

_TENANT, _KEY = 2, 4  # the share of all bytes that one of them may have: one in so many
_ALL = "all"
_IN_SCOPE = "xylem.incoming"


class Incoming:
    """Nobody takes more than is left after that: a few who send slowly leave room for all others."""

    def __init__(self, most: int) -> None:
        """`most`: XYLEM_INCOMING_BYTES."""
        self._most = most
        self._sizes: dict[str, int] = {}

    def take(self, owners: tuple[str, ...], more: int, size: int) -> None:
        """`more` bytes of a body that has `size`, or more. Raises: BodyTooLarge, if it never fits; Saturated."""
        remaining_bytes = self._most - self._sizes.get(_ALL, 0) - more
        for owner in owners:
            most = self._most // {"key": _KEY, "tenant": _TENANT}.get(owner.partition(":")[0], 1)
            if self._sizes.get(owner, 0) + more > most:
                whose = "of one API key" if owner.startswith("key:") else "of one tenant" if ":" in owner else "here"
                limit = f"At most {most} bytes of requests {whose} come in at once (XYLEM_INCOMING_BYTES)"
                if size > most:
                    raise BodyTooLarge(f"{limit}, and this request's body is larger.")
                raise Saturated(f"{limit}. Try again when others have come whole.")
            if owner != _ALL and self._sizes.get(owner, 0) + more > remaining_bytes:
                raise Saturated(
                    "Many large requests come in (XYLEM_INCOMING_BYTES). Try again when others have come whole."
                )
        for owner in owners:
            self._sizes[owner] = self._sizes.get(owner, 0) + more

    def give_back(self, owners: tuple[str, ...], size: int) -> None:
        for owner in owners:
            self._sizes[owner] -= size
            if not self._sizes[owner]:
                del self._sizes[owner]


class Share:
    """The bytes of one request, of those of all."""

    def __init__(self, incoming: Incoming, client: Client) -> None:
        self._incoming, self._size = incoming, 0
        self._owners: tuple[str, ...] = (_ALL,)
        if client.key:
            tenant = () if client.tenant.name == DEFAULT else (f"tenant:{client.tenant.name}",)
            self._owners = f"key:{client.key}", *tenant, _ALL

    def grow(self, size: int) -> None:
        """Grows the share to so many bytes in all. Raises: BodyTooLarge, Saturated."""
        if (more := size - self._size) > 0:
            self._incoming.take(self._owners, more, size)
            self._size = size

    def close(self) -> None:
        if self._size:
            self._incoming.give_back(self._owners, self._size)
            self._size = 0


def put(scope: Scope, share: Share) -> None:
    scope[_IN_SCOPE] = share


def share_of(scope: Scope) -> Share | None:
    """The share of a request whose body may be large; None: it has none."""
    share: Share | None = scope.get(_IN_SCOPE)
    return share
