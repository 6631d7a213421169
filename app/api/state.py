"""The state that the handlers of one API process share."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import cast

from fastapi import Request
from starlette.types import Scope

from app.api.api_keys import ApiKeys
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
from app.dispatch.runtime import Runtime
from app.tenants import admission
from app.tenants.admission import Admission
from app.tenants.charge import Charge
from app.tenants.ledger import Ledger
from app.tenants.stored_bytes import Quotas

_READERS, _MOST_READING, _READ = 2, 2**14, "requests for what is kept"
_MOST_LIMITED = 1000  # states: of clients of old limits, too


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
    limited: "dict[int, ApiState]" = field(default_factory=dict, kw_only=True)  # by the identity of `within`

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
    """The state for the client that sent the request."""
    return for_client(cast(ApiState, request.app.state.xylem), request.scope)


def for_client(state: ApiState, scope: Scope) -> ApiState:
    """The state with the limits of the client that sent a request. Most have none that concern a single request."""
    within = state.api_keys.client(scope).within
    if within is state.within:
        return state
    limited_state = state.limited.get(id(within))
    if limited_state is None or limited_state.within is not within:  # a copy takes 20 µs
        if len(state.limited) >= _MOST_LIMITED:
            state.limited.clear()
        limited_state = state.limited[id(within)] = replace(state, within=within)
    return limited_state
