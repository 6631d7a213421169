"""Puts a pool's workers to sleep, pauses them, gives them other weights, profiles them; for operators."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field

from app.api.intake.request_body import read_short
from app.api.operations.admin import Admin, known_pool
from app.api.operations.answer_types import PoolChanged, PoolStanding
from app.api.operations.audited_route import AuditedRoute
from app.api.state import ApiState
from app.dispatch.fleet.orders import Command
from app.dispatch.fleet.pool_control import Outcome
from app.errors import RequestError
from app.ids import PoolId, WorkerId
from app.messages.commands import Pause, Profile, RecordExperts, Resume, Scale, SetWeights, Sleep, Wake
from app.messages.kinds import ExpertAction, PauseMode
from app.messages.lease import Lease
from app.messages.wanted import WeightsSource
from app.messages.wire import encode
from app.pools.schema import SleepLevel
from app.routing.pool_state import allowed, to_sleep
from app.schemas.body import Body

router = APIRouter(prefix="/admin/pools/{pool}", tags=["pools"], route_class=AuditedRoute)
T = TypeVar("T")
_under_way: set[asyncio.Task[Any]] = set()


class Chosen(Body):
    workers: Literal["all"] | Annotated[list[str], Field(min_length=1)] = "all"  # ids, or the whole pool for good
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0  # for each worker


class SleepBody(Chosen):
    level: SleepLevel | None = None  # 2: the weights aren't kept in the host's memory; null: the pool's `sleep_level`
    mode: PauseMode = "wait"  # for running requests; `abort`: other workers go on with them
    keep_awake: Annotated[int, Field(ge=0, le=2**31)] = 0  # so many workers of the pool don't sleep


class WakeBody(Chosen):
    tags: tuple[Literal["weights", "kv_cache"], ...] = ()  # only this memory


class PauseBody(Chosen):
    mode: PauseMode = "wait"


class Transfer(Body):
    """A transfer group, through which a trainer sends weights; the fields are the engine's own."""

    init: dict[str, Any] | None = None  # how to join it; null: the workers have joined
    update: dict[str, Any] | None = None  # what comes now


class WeightsBody(Body):
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,64}$")]  # empty, without a source: the pool's own
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # below XYLEM_WEIGHTS_FOLDER
    transfer: Transfer | None = None
    mode: PauseMode = "wait"  # for running requests; `keep`: they go on with the new weights
    rolling: bool = True  # one worker after the other
    keep_awake: Annotated[int, Field(ge=0, le=2**31)] | None = None  # rolling: all but so many at a time
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0  # for each worker


class ExpertsBody(Chosen):
    action: ExpertAction  # `dump` writes what was recorded where the engine's arguments say, and forgets it


class ScaleBody(Chosen):
    data_parallel_size: Annotated[int, Field(ge=1, le=1024)]  # of each worker


class ProfileBody(Chosen):
    action: Literal["start", "stop"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""  # the record's files begin with it


@router.get("/state")
async def show_pool_state(state: Admin, pool: str) -> PoolStanding:
    """Shows what the pool's workers are to do, and what they do."""
    return await _shown(state, known_pool(state, pool))


@router.post("/sleep", openapi_extra=SleepBody.openapi())
async def put_pool_to_sleep(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Workers leave routing, then sleep, all but `keep_awake`."""
    return await put_to_sleep(state, known_pool(state, pool), await read_short(request, SleepBody))


async def put_to_sleep(state: ApiState, name: PoolId, body: SleepBody) -> PoolChanged:
    """Raises: PoolBusy, RequestError, StoreDown."""
    level = body.level or state.pools[name].sleep_level

    async def work() -> Outcome:
        leases = await state.control.workers(name)
        selection = _chosen(leases, body)
        if body.workers == "all":
            await state.control.want(name, sleep=level, keep_awake=body.keep_awake, tags=[])
        sleepers = to_sleep(leases, selection, body.keep_awake)
        return await state.control.order(sleepers, lambda i: Sleep(i, level, body.mode), body.timeout_s)

    return await _changed(state, name, work)


@router.post("/wake", openapi_extra=WakeBody.openapi())
async def wake_pool(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Sleeping workers wake, and take requests after a token that proves them."""
    return await wake_up(state, known_pool(state, pool), await read_short(request, WakeBody))


async def wake_up(state: ApiState, name: PoolId, body: WakeBody) -> PoolChanged:
    """Raises: PoolBusy, RequestError, StoreDown."""

    async def work() -> Outcome:
        if body.workers == "all":
            tags = sorted({*(await state.control.wanted(name)).tags, *body.tags})
            changes = {"tags": tags} if body.tags else {"tags": [], "sleep": 0, "keep_awake": 0}
            await state.control.want(name, **changes)
        return await _order(state, name, body, lambda i: Wake(i, list(body.tags)))

    return await _changed(state, name, work)


@router.post("/pause", openapi_extra=PauseBody.openapi())
async def pause_pool(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Workers leave routing and compute nothing. New requests wait, for `XYLEM_PATIENCE_S`."""
    name, body = known_pool(state, pool), await read_short(request, PauseBody)

    async def work() -> Outcome:
        if body.workers == "all":
            await state.control.want(name, paused=body.mode)
        return await _order(state, name, body, lambda i: Pause(i, body.mode))

    return await _changed(state, name, work)


@router.post("/resume", openapi_extra=Chosen.openapi())
async def resume_pool(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Paused workers go on."""
    name, body = known_pool(state, pool), await read_short(request, Chosen)

    async def work() -> Outcome:
        if body.workers == "all":
            await state.control.want(name, paused=None)
        return await _order(state, name, body, Resume)

    return await _changed(state, name, work)


@router.post("/weights", openapi_extra=WeightsBody.openapi())
async def set_pool_weights(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Workers take other weights, also those that start later. Those that have the version already stay as they are."""
    name, body = known_pool(state, pool), await read_short(request, WeightsBody)
    source = _source(body)
    if body.path is not None:
        allowed(body.path, state.settings.weights_folder)

    async def work() -> Outcome:
        before = await state.control.wanted(name)
        if body.path is not None and before.weights == body.version and before.source != source:
            raise RequestError(f"version={body.version!r}: this pool has other weights of that name.", param="version")
        await state.control.want(name, weights=body.version, source=source)
        outcome: Outcome = {}
        try:
            outcome = await state.control.roll(
                name,
                body.version,
                lambda i: SetWeights(i, body.version, source, body.mode),
                body.timeout_s,
                rolling=body.rolling,
                keep_awake=body.keep_awake,
            )
        finally:
            if not any(not reason for reason in outcome.values()) and (outcome or await state.control.workers(name)):
                has = {le.state.weights for le in await state.control.workers(name)}
                if body.version not in has:  # none could: one that is restarted isn't to fail, too
                    await state.control.want(name, weights=before.weights, source=before.source)
        return outcome

    return await _changed(state, name, work)


@router.post("/profile", openapi_extra=ProfileBody.openapi())
async def profile_pool(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Starts or stops the engines' profilers."""
    name, body = known_pool(state, pool), await read_short(request, ProfileBody)
    on = body.action == "start"
    return await _changed(state, name, lambda: _order(state, name, body, lambda i: Profile(i, on, body.name)))


@router.post("/experts", openapi_extra=ExpertsBody.openapi())
async def record_pool_experts(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Starts or stops the record of how tokens are spread over the model's experts, or writes it down."""
    name, body = known_pool(state, pool), await read_short(request, ExpertsBody)
    return await _changed(state, name, lambda: _order(state, name, body, lambda i: RecordExperts(i, body.action)))


@router.post("/scale_elastic_ep", openapi_extra=ScaleBody.openapi())
async def scale_pool_experts(request: Request, state: Admin, pool: str) -> PoolChanged:
    """Workers leave routing, finish their requests, and come back with that many data-parallel ranks."""
    name, body = known_pool(state, pool), await read_short(request, ScaleBody)
    return await _changed(state, name, lambda: _order(state, name, body, lambda i: Scale(i, body.data_parallel_size)))


def _source(body: WeightsBody) -> WeightsSource | None:
    """Raises: RequestError."""
    if [body.path, body.transfer].count(None) != (1 if body.version else 2):
        raise RequestError(
            f"version={body.version!r}: a version needs either a path or a transfer, and an empty one neither.",
            param="version",
        )
    if body.path is not None:
        return WeightsSource(body.path)
    if body.transfer is None:
        return None
    source = WeightsSource("", body.transfer.init, body.transfer.update)
    try:
        encode(source)
        json.dumps(msgspec.to_builtins(source), allow_nan=False)
    except (ValueError, OverflowError, RecursionError) as exc:
        raise RequestError(f"'transfer' has a value that can't be sent: {exc}", param="transfer") from None
    return source


def _chosen(leases: list[Lease], body: Chosen) -> list[WorkerId]:
    """Raises: RequestError for a worker that the pool doesn't have."""
    there = [lease.worker.id for lease in leases]
    if body.workers == "all":
        return there
    if unknown := [worker for worker in body.workers if worker not in there]:
        raise RequestError(f"workers={unknown}: the pool has {there}.", param="workers")
    return [WorkerId(worker) for worker in body.workers]


async def _order(state: ApiState, pool: PoolId, body: Chosen, command: Command) -> Outcome:
    selection = _chosen(await state.control.workers(pool), body)
    return await state.control.order(selection, command, body.timeout_s)


async def _changed(state: ApiState, pool: PoolId, work: Callable[[], Awaitable[Outcome]]) -> PoolChanged:
    async def alone() -> Outcome:
        async with state.control.alone(pool):
            return await work()

    outcome = await _to_the_end(alone())
    return {
        "done": sorted(worker for worker, reason in outcome.items() if not reason),
        "refused": {worker: reason for worker, reason in sorted(outcome.items()) if reason},
        **await _shown(state, pool),
    }


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """A change that has begun is finished, also if its client leaves."""
    task = asyncio.create_task(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return await asyncio.shield(task)


async def _shown(state: ApiState, pool: PoolId) -> PoolStanding:
    target, leases = await state.control.wanted(pool), await state.control.workers(pool)
    return {
        "wanted": msgspec.to_builtins(target),
        "workers": {
            lease.worker.id: msgspec.structs.asdict(lease.state) | {"takes_requests": not lease.draining}
            for lease in leases
        },
    }
