"""Carries out erasures: one API replica at a time, for all. Whatever stops it, another one goes on."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, get_args

from msgspec.structs import replace

from app.api.openai.file_expiry import forget
from app.api.operations.admin import clear_caches
from app.api.state import ApiState
from app.batch import paths
from app.batch.records import LIVE
from app.batch.storage import in_thread
from app.errors import ConversationGone, XylemError
from app.ids import ConversationId, KeyId, RequestId, TenantId
from app.running.loops import keep
from app.store import clock
from app.store.handling import Handling
from app.telemetry import logger
from app.tenants.erasure_store import ErasureStore
from app.tenants.erasures import Erasure, after_pass, is_due, is_over
from app.tenants.limit_table import Unit
from app.tenants.rates_and_budgets import of_tenant
from app.tenants.records import Tenant

log = logger(__name__)

_EVERY_S = 1.0
_ENDS_S = 60.0  # a cancelled batch that has not ended by then is removed all the same
_AT_ONCE = 1000
_GIVEN_UP = "API replicas died each time they carried it out. Ask for it again to go on."


class Pass(NamedTuple):
    removed: int
    left: int = 0  # found, and still there


async def _batches(state: ApiState, erasure: Erasure) -> Pass:
    """Cancels batches, and removes them when batch workers have let go of them."""
    removed_count = remaining_count = 0
    patient = clock.now() - erasure.began < _ENDS_S and await state.batch_store.has_leader()
    for owner in erasure.owners:
        for id_, batch in await state.batch_store.all_of(owner):
            if batch is not None and batch.status in LIVE and patient:
                await state.batch_store.cancel(id_)
                remaining_count += 1
                continue
            await in_thread(state.storage.delete, paths.folder(id_))
            await state.batch_store.remove(id_, owner, batch.parts if batch is not None else 0)
            removed_count += 1
    return Pass(removed_count, remaining_count)


async def _answers(state: ApiState, erasure: Erasure) -> Pass:
    """Kept answers, stored chats and videos. Those that are being made are cancelled."""
    removed_count = 0
    async for id_, _owner in _kept(state, erasure):
        if not id_.startswith("conv_"):
            await state.answer_owner.cancel(RequestId(id_))
            await state.resumable_store.delete(RequestId(id_))
            removed_count += 1
    return Pass(removed_count)


async def _conversations(state: ApiState, erasure: Erasure) -> Pass:
    removed_count = 0
    async for id_, owner in _kept(state, erasure):
        if id_.startswith("conv_"):
            try:
                await state.conversations.delete(ConversationId(id_), owner)
                removed_count += 1
            except ConversationGone:  # expired; its entry goes when the next answer is kept
                continue
    return Pass(removed_count)


async def _kept(state: ApiState, erasure: Erasure) -> AsyncIterator[tuple[str, KeyId]]:
    """The ids of the owners' kept answers and conversations."""
    owners, cursor, (_, members) = set(erasure.owners), b"0", state.keys.kept_account()
    owner_by_id: dict[str, KeyId] = {}
    while True:
        ((cursor, flat),) = await state.wire.execute([("ZSCAN", members, cursor, "COUNT", _AT_ONCE)])
        for member in flat[::2]:
            id_, _, owner = member.decode().partition("|")
            if owner in owners:
                owner_by_id[id_] = KeyId(owner)
        if cursor == b"0":
            break
    for id_, key in owner_by_id.items():
        yield id_, key


async def _files(state: ApiState, erasure: Erasure) -> Pass:
    """Uploads, outputs of batches, pictures and videos, with their bytes."""
    removed_count = 0
    for owner in erasure.owners:
        for file in await state.files.all_of(owner):
            await forget(state.painted if file.is_painted else state.storage, state.files, file)
            removed_count += 1
    return Pass(removed_count)


async def _accounts(state: ApiState, erasure: Erasure) -> Pass:
    """Removes what is counted or listed by owner."""
    keys, accounts = state.keys, [str(owner) for owner in erasure.owners]
    if erasure.kind == "tenant":
        accounts.append(of_tenant(Tenant(TenantId(erasure.name))).name)
    for account in accounts:
        rates = keys.spent(account), keys.spent(f"{account}:batch")
        reservations = (keys.reserved(account, unit) for unit in get_args(Unit))
        names = *rates, keys.budget(account), *reservations, keys.running(account)
        await state.wire.execute([("UNLINK", name) for name in names])
    for owner in erasure.owners:
        await state.wire.execute([("UNLINK", name) for name in (keys.chats_of(owner), keys.videos_of(owner))])
    return Pass(0)


# In this order. Usage records stay: they have no content, and are what a tenant is billed by.
PARTS: dict[str, Callable[[ApiState, Erasure], Awaitable[Pass]]] = {
    "batches": _batches,
    "answers": _answers,
    "conversations": _conversations,
    "files": _files,
    "accounts": _accounts,
}


class Erasing:
    """The work of this replica on erasures, on the API's event loop."""

    def __init__(self, state: ApiState) -> None:
        self._state, self._store = state, ErasureStore(state.wire, state.keys)
        self._handling = Handling(state.wire, state.keys)
        self._owners: set[KeyId] = set()  # of the erasures that were known at the last look

    async def run(self) -> None:
        """Carries out erasures, until cancelled."""
        await keep("erasures_not_read", self.look, _EVERY_S)

    async def look(self) -> None:
        """Raises: StoreDown."""
        erasures = await self._store.all()
        owners = {owner for erasure in erasures for owner in erasure.owners}
        if not owners | self._owners:
            return
        self._state.dispatcher.timelines.forget(owners)
        self._state.api_keys.forget_owners(owners | self._owners)  # after the last pass, too
        self._owners = owners
        due = [erasure for erasure in erasures if is_due(erasure, clock.now())]
        if not due or not await self._store.leads(self._state.dispatcher.api):
            return
        for erasure in due:
            async with self._handling.of(f"erasure:{erasure.field}", alone=True) as attempt:
                if attempt.deaths > self._state.settings.max_migrations:
                    log.error("erasure_given_up", of=erasure.kind, deaths=attempt.deaths)
                    await self._store.update(replace(erasure, given_up=_GIVEN_UP))
                else:
                    await self.carry_out(erasure)
                attempt.done = True

    async def carry_out(self, erasure: Erasure) -> None:
        """One pass. Raises: StoreDown."""
        began, removed_counts, remaining_count = clock.now(), Counter[str](), 0
        try:
            removed_counts["keys"] = await self._store.revoke(erasure.owners)
            if not erasure.clean:
                await self._store.change_salts(erasure)
            for what, remove in PARTS.items():
                result = await remove(self._state, erasure)
                removed_counts[what] += result.removed
                remaining_count += result.left
        except XylemError as exc:
            remaining_count += 1
            log.warning("erasure_interrupted", of=erasure.kind, error=exc.message)
        new_erasure = after_pass(
            erasure, began, clock.now(), {what: n for what, n in removed_counts.items() if n}, remaining_count
        )
        if new_erasure.clean and new_erasure.clear:
            answer = await clear_caches(self._state, list(self._state.pools))
            new_erasure = replace(new_erasure, refused=answer["refused"], clear=bool(answer["refused"]))
        if new_erasure.clean and not erasure.clean:
            log.info("erased", of=erasure.kind, **new_erasure.removed)
        if is_over(new_erasure, clock.now()):
            await self._store.forget_owners(new_erasure.owners)
            await self._store.forget(new_erasure)
        else:
            await self._store.update(new_erasure)
