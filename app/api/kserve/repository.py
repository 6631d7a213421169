"""The model repository, which is the pools file: what is there, and models that are woken and put to sleep."""

from collections.abc import Sequence

from starlette.types import Scope

from app.api.kserve.inference import model_of
from app.api.operations.answer_types import PoolChanged
from app.api.operations.health import readiness
from app.api.operations.pool_state import SleepBody, WakeBody, put_to_sleep, wake_up
from app.api.state import ApiState, asking_of
from app.dispatch.models.models import Model, find_model
from app.errors import EngineFailed, NoWorker, RequestError
from app.ids import PoolId
from app.kserve.answer_types import IndexEntry, ModelStatistics
from app.kserve.requests import VERSION, check_version
from app.kserve.statistics import statistics
from app.tenants.limits import may_ask


async def index(state: ApiState, scope: Scope, *, ready_only: bool) -> list[IndexEntry]:
    """The models that the client may ask for."""
    status, within = await readiness(state), state.api_keys.client(scope).within
    index_entries = [
        _entry(state, model, is_ready=bool(status["ready"] and status["workers"].get(model.name)))
        for name, model in sorted(state.models.items())
        if may_ask(within, name)
    ]
    return [entry for entry in index_entries if entry["state"] == "READY" or not ready_only]


def _entry(state: ApiState, model: Model, *, is_ready: bool) -> IndexEntry:
    if is_ready:
        return {"name": model.name, "version": VERSION, "state": "READY", "reason": ""}
    leases = state.fleet.leases(model.pools).values()
    reason = "no worker is up"
    if leases:
        reason = "its workers sleep" if all(lease.state.asleep for lease in leases) else "no worker takes requests"
    return {"name": model.name, "version": VERSION, "state": "UNAVAILABLE", "reason": reason}


async def statistics_of(state: ApiState, scope: Scope, name: str = "", version: str = "") -> list[ModelStatistics]:
    """Returns those of one model, or of all that the client may ask for. Raises: ModelNotFound."""
    asking = asking_of(state, scope)
    if not name:
        models = {one: model for one, model in sorted(state.models.items()) if may_ask(asking.within, one)}
    else:
        check_version(name, version)
        models = {name: await model_of(asking, name)}
    return [statistics(one, model.meters.model) for one, model in models.items()]


async def load(state: ApiState, name: str) -> None:
    """Wakes the workers of all its pools, and waits for them. Raises: XylemError."""
    changes = [await wake_up(state, pool, WakeBody()) for pool in _pools_of(state, name)]
    _check(name, changes)
    if not any(change["workers"] for change in changes):
        raise NoWorker(f"No worker of the model '{name}' is up. One that starts takes requests.")


async def unload(state: ApiState, name: str) -> None:
    """Puts the workers of all its pools to sleep, and waits for them. Raises: XylemError."""
    _check(name, [await put_to_sleep(state, pool, SleepBody()) for pool in _pools_of(state, name)])


def _pools_of(state: ApiState, name: str) -> list[PoolId]:
    """Raises: ModelNotFound, RequestError."""
    model = state.models.get(name) or find_model(state.models, name)
    if model.parent is not None:
        raise RequestError(
            f"'{name}' is an adapter for '{model.parent}': adapters are loaded and removed at /admin/loras.",
            param="model",
        )
    return [*model.pools, *model.prefill_pools, *model.encode_pools]


def _check(name: str, changes: Sequence[PoolChanged]) -> None:
    """Raises: EngineFailed: a worker has not done it."""
    for change in changes:
        for worker, reason in change["refused"].items():
            raise EngineFailed(f"The worker {worker} of the model '{name}' did not: {reason}")
