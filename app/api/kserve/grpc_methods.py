"""The methods of `inference.GRPCInferenceService` that answer at once, and the table of all."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from starlette.types import Scope

from app import json_bytes
from app.api.kserve import infer_calls, repository, standard_calls
from app.api.kserve.grpc_calls import Calls, Method, Work
from app.api.kserve.inference import metadata_of, model_of, served_by, server
from app.api.kserve.messages import parameters_of
from app.api.kserve.protocol import MESSAGES, SERVICE
from app.api.operations.health import readiness
from app.api.state import asking_of
from app.errors import ModelNotFound, XylemError, outcome_of
from app.kserve.repository import LoadBody, UnloadBody
from app.kserve.requests import check_version
from app.schemas.body import Body
from app.schemas.validation import parse
from app.tenants import audit


async def live(*_: Any) -> Any:
    return MESSAGES["ServerLiveResponse"](live=True)


async def ready(calls: Calls, *_: Any) -> Any:
    return MESSAGES["ServerReadyResponse"](ready=(await readiness(calls.state))["ready"])


async def model_ready(calls: Calls, message: Any, scope: Scope, *_: Any) -> Any:
    try:
        check_version(message.name, message.version)
        is_ready = await served_by(calls.state, await model_of(asking_of(calls.state, scope), message.name))
    except ModelNotFound:
        is_ready = False
    return MESSAGES["ModelReadyResponse"](ready=is_ready)


async def server_metadata(*_: Any) -> Any:
    return MESSAGES["ServerMetadataResponse"](**server())


async def model_metadata(calls: Calls, message: Any, scope: Scope, *_: Any) -> Any:
    metadata = await metadata_of(asking_of(calls.state, scope), message.name, message.version)
    return MESSAGES["ModelMetadataResponse"](**metadata)


async def index(calls: Calls, message: Any, scope: Scope, *_: Any) -> Any:
    models = await repository.index(calls.state, scope, ready_only=message.ready)
    return MESSAGES["RepositoryIndexResponse"](models=models)


async def statistics(calls: Calls, message: Any, scope: Scope, *_: Any) -> Any:
    answer = MESSAGES["ModelStatisticsResponse"]()
    fields = MESSAGES["InferStatistics"].DESCRIPTOR.fields_by_name
    for one in await repository.statistics_of(calls.state, scope, message.name, message.version):
        stats = {name: stat for name, stat in one["inference_stats"].items() if name in fields}
        counts = {name: value for name, value in one.items() if name not in ("inference_stats", "batch_stats")}
        answer.model_stats.add(**counts, inference_stats=stats)
    return answer


async def load(calls: Calls, message: Any, scope: Scope, *_: Any) -> Any:
    _check(LoadBody, message)
    await _audited(calls, scope, message.model_name, repository.load(calls.state, message.model_name))
    return MESSAGES["RepositoryModelLoadResponse"]()


async def unload(calls: Calls, message: Any, scope: Scope, *_: Any) -> Any:
    _check(UnloadBody, message)
    await _audited(calls, scope, message.model_name, repository.unload(calls.state, message.model_name))
    return MESSAGES["RepositoryModelUnloadResponse"]()


def _check(schema: type[Body], message: Any) -> None:
    """Raises: RequestError: there is no such parameter."""
    parameters = dict.fromkeys(message.parameters) | parameters_of(message.parameters)
    parse(schema, json_bytes.dumps({"parameters": parameters}))


async def _audited(calls: Calls, scope: Scope, name: str, change: Any) -> None:
    """Does a change, and notes it whatever becomes of it, as `AuditedRoute` does."""
    outcome = XylemError.code
    try:
        await change
        outcome = outcome_of(None)
    except XylemError as exc:
        outcome = exc.code
        raise
    finally:
        await audit.note(calls.state, SimpleNamespace(scope=scope), f"POST {scope['path']}", name, {}, outcome=outcome)


def _method(name: str, work: Work, **more: Any) -> Method:
    return Method(work, MESSAGES[f"{name}Request"], MESSAGES[f"{name}Response"], **more)


METHODS: Mapping[str, Method] = {
    **{
        f"/{SERVICE}/{name}": _method(name, work, **more)
        for name, work, more in (
            ("ServerLive", live, {"guard": "open"}),
            ("ServerReady", ready, {"guard": "open"}),
            ("ModelReady", model_ready, {}),
            ("ServerMetadata", server_metadata, {}),
            ("ModelMetadata", model_metadata, {}),
            ("ModelInfer", infer_calls.infer, {"large": True}),
            ("RepositoryIndex", index, {}),
            ("RepositoryModelLoad", load, {"guard": "admin"}),
            ("RepositoryModelUnload", unload, {"guard": "admin"}),
            ("ModelStatistics", statistics, {}),
        )
    },
    f"/{SERVICE}/ModelStreamInfer": Method(
        infer_calls.stream, MESSAGES["ModelInferRequest"], MESSAGES["ModelStreamInferResponse"], streams=True
    ),
    **standard_calls.METHODS,
}
