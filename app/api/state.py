"""The state that the handlers of one API process share."""

import hashlib
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request
from starlette.types import Scope

from app.api.api_keys import ApiKeys
from app.api.http.headers import EXPLAIN, KEEPING
from app.api.http.incoming import Incoming
from app.api.http.live_stream import LiveLooks
from app.api.resumable.chat_index import ChatIndex
from app.api.resumable.conversations import ConversationStore
from app.api.resumable.owner import AnswerOwner
from app.api.resumable.store import ResumableStore
from app.batch.batch_store import BatchStore
from app.batch.file_store import FileStore
from app.batch.storage import Storage
from app.bounded.held_bytes import HeldBytes
from app.bounded.turns import Turns
from app.dispatch.asking import Asking
from app.dispatch.media.media_reader import Asker
from app.dispatch.models.aliases import ANY, AliasTurn
from app.dispatch.runtime import Runtime
from app.tenants import admission
from app.tenants.admission import Admission
from app.tenants.charge import Charge
from app.tenants.ledger import Ledger
from app.tenants.stored_bytes import Quotas

_READERS, _MOST_READING, _READ = 2, 2**14, "requests for what is kept"


@dataclass(frozen=True)
class ApiState(Runtime):
    api_keys: ApiKeys
    ledger: Ledger
    quotas: Quotas
    resumable_store: ResumableStore
    conversations: ConversationStore
    answer_owner: AnswerOwner
    storage: Storage
    painted: Storage  # the media store, of painted files
    files: FileStore
    batch_store: BatchStore
    chats: ChatIndex
    incoming: Incoming
    started: int  # seconds since the epoch
    answers: HeldBytes  # of long ones that are made from what is kept, until their clients have taken them
    # What is kept may be large, and is read and shown a few at a time.
    readers: Turns = field(default_factory=lambda: Turns(_READERS, _MOST_READING, _READ), kw_only=True)
    live: LiveLooks = field(default_factory=LiveLooks, kw_only=True)

    def reading(self) -> AbstractAsyncContextManager[None]:
        """A turn to read what is kept. Raises: Saturated, if it does not come while a client waits for Redis."""
        return self.readers.turn(self.settings.patience_s)

    def charge(self, scope: Scope, *, outlives: bool = False) -> Charge | None:
        """The charge of a request whose key was checked; None: nothing limits its client. `outlives`: see `Charge`."""
        charge = Charge.of(self.ledger, self.api_keys.client(scope), outlives=outlives)
        if charge is not None and (early := admission.current.get()) is not None:
            charge.early = early.given_back
        return charge

    def begin_admission(self, scope: Scope) -> Admission:
        """Begins the admission of a request whose key was checked, in its own context."""
        request_admission = Admission(self.ledger, self.api_keys.client(scope), self.settings.request_timeout_s)
        admission.current.set(request_admission)
        return request_admission


def state_of(request: Request) -> ApiState:
    return cast(ApiState, request.app.state.xylem)


def asking_of(state: ApiState, scope: Scope, raw: bytes = b"") -> Asking:
    """A request, as its client may ask it.

    `raw`: the body of one that may be repeated, to resume or join its answer: it chooses by that among the models of
    an alias.
    """
    client, headers, turn = state.api_keys.client(scope), dict(scope["headers"]), ANY
    goes_on, explain = not KEEPING.isdisjoint(headers), headers.get(EXPLAIN, b"") not in (b"", b"0")
    if raw and state.aliases.table and goes_on:
        turn = AliasTurn(hashlib.sha256(raw).hexdigest(), fixed=True)
    return Asking(state, client.within, Asker(client.key), turn, goes_on=goes_on, explain=explain)
