"""`x-request-id`: names one HTTP request for client and operator. Every response has it, errors too.

It is the client's own if that is well-formed; else the id of the request's answer; else a new one.
"""

import re
import secrets
from collections.abc import Iterable
from itertools import count

from starlette.types import Scope

from app.api.http.request_trace import trace_of
from app.ids import RequestId
from app.messages.trace import log_names

HEADER = b"x-request-id"
_IN_SCOPE = "xylem.x_request_id"  # the client's own
_FIELDS_IN_SCOPE = "xylem.fields"

# It is written into logs, and into Celery's messages, which Flower shows.
_well_formed = re.compile(rb"[A-Za-z0-9._:-]{1,128}").fullmatch

# New ids. They are not secret, so they need no random numbers.
new_ids = map((b"req_%b" % secrets.token_hex(8).encode() + b"%08x").__mod__, count())

Fields = list[tuple[bytes, bytes]]


def given(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's own; empty if there is none, or it is not well-formed."""
    for name, value in headers:
        if name == HEADER and _well_formed(value):
            return value
    return b""


def identify(scope: Scope, fields: Fields) -> Fields:
    """The response's headers that the server writes: `fields`, and this one as the last."""
    own = given(scope["headers"])
    scope[_IN_SCOPE] = own.decode()
    scope[_FIELDS_IN_SCOPE] = fields = [*fields, (HEADER, own or next(new_ids))]
    return fields


def own_of(scope: Scope) -> str:
    """The client's own; empty if it has none."""
    return str(scope.get(_IN_SCOPE, ""))


def named_after(scope: Scope, answer: RequestId) -> str:
    """A request's id, now that its answer is known: the client's own, or from now on the answer's."""
    own: str = scope.get(_IN_SCOPE, "")
    if not own and _FIELDS_IN_SCOPE in scope:
        scope[_FIELDS_IN_SCOPE][-1] = (HEADER, answer.encode())
    return own or answer


def names(scope: Scope) -> dict[str, str]:
    """Fields that all log lines about a request have."""
    trace = trace_of(scope)
    return log_names(of(scope), "" if trace is None else trace.place.trace)


def of(scope: Scope) -> str:
    """The response's id. Empty under a server that does not `identify`."""
    fields: Fields | None = scope.get(_FIELDS_IN_SCOPE)
    return fields[-1][1].decode() if fields else ""
