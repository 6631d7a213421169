"""gRPC's own services: whether this server takes requests, and which services, methods and messages it has."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from google.protobuf import descriptor_pb2
from starlette.types import Scope

from app.api.kserve.descriptors import POOL
from app.api.kserve.grpc_calls import Calls, Method
from app.api.kserve.messages import short_message
from app.api.kserve.protocol import SERVICE
from app.api.kserve.standard_protocol import (
    HEALTH,
    HEALTH_MESSAGES,
    NOT_SERVING,
    REFLECTIONS,
    SERVICE_UNKNOWN,
    SERVING,
)
from app.api.operations.health import readiness
from app.errors import ModelNotFound

_LOOK_S = 1.0  # from one look at what is watched to the next
_NOT_FOUND, _UNIMPLEMENTED = 5, 12  # gRPC's codes, within reflection's answers
_SERVICES = sorted((SERVICE, HEALTH, *REFLECTIONS))


async def check(calls: Calls, message: Any, *_: Any) -> Any:
    """Raises: ModelNotFound: there is no such service."""
    if (status := await _status(calls, message.service)) == SERVICE_UNKNOWN:
        raise ModelNotFound(f"There is no service '{message.service[:100]}': {', '.join(_SERVICES)}.")
    return HEALTH_MESSAGES["HealthCheckResponse"](status=status)


async def watch(calls: Calls, messages: AsyncIterator[bytes], _scope: Scope, context: Any) -> None:
    """Tells the state of a service, and each other state that it comes to, until the client or this server leaves."""
    async for raw in _coming(calls, messages):
        service, earlier = short_message(HEALTH_MESSAGES["HealthCheckRequest"], raw).service, None
        while True:
            if (status := await _status(calls, service)) != earlier:
                await context.write(HEALTH_MESSAGES["HealthCheckResponse"](status=status))
                earlier = status
            if calls.leaving.is_set():
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(calls.leaving.wait(), _LOOK_S)


async def _status(calls: Calls, service: str) -> int:
    if service and service not in _SERVICES:
        return SERVICE_UNKNOWN
    if calls.leaving.is_set():
        return NOT_SERVING
    return SERVING if (await readiness(calls.state))["ready"] else NOT_SERVING


async def reflect(calls: Calls, messages: AsyncIterator[bytes], scope: Scope, context: Any) -> None:
    method = METHODS[scope["path"]]
    async for raw in _coming(calls, messages):
        message = short_message(method.asks, raw)
        answer = method.answer(valid_host=message.host, original_request=message)
        _answer(message, answer)
        await context.write(answer)


def _answer(message: Any, answer: Any) -> None:
    """Fills in what a message of reflection asks for."""
    kind = message.WhichOneof("parameter_choice")
    try:
        if kind == "list_services":
            for name in _SERVICES:
                answer.list_services_response.service.add(name=name)
            return
        if kind in ("file_by_filename", "file_containing_symbol"):
            find = POOL.FindFileByName if kind == "file_by_filename" else POOL.FindFileContainingSymbol
            file = descriptor_pb2.FileDescriptorProto()
            find(getattr(message, kind)).CopyToProto(file)
            answer.file_descriptor_response.file_descriptor_proto.append(file.SerializeToString())
            return
    except KeyError:
        answer.error_response.error_code, answer.error_response.error_message = _NOT_FOUND, "There is no such thing."
        return
    answer.error_response.error_code, answer.error_response.error_message = _UNIMPLEMENTED, "There are no extensions."


async def _coming(calls: Calls, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The messages of a stream, until this server leaves."""
    leaving = asyncio.create_task(calls.leaving.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(messages, None))
            await asyncio.wait((coming, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return
            if (message := coming.result()) is None:
                return
            yield message
    finally:
        leaving.cancel()


METHODS: Mapping[str, Method] = {
    f"/{HEALTH}/Check": Method(
        check, HEALTH_MESSAGES["HealthCheckRequest"], HEALTH_MESSAGES["HealthCheckResponse"], guard="open"
    ),
    f"/{HEALTH}/Watch": Method(
        watch, HEALTH_MESSAGES["HealthCheckRequest"], HEALTH_MESSAGES["HealthCheckResponse"], streams=True
    ),
    **{
        f"/{service}/ServerReflectionInfo": Method(
            reflect, messages["ServerReflectionRequest"], messages["ServerReflectionResponse"], streams=True
        )
        for service, messages in REFLECTIONS.items()
    },
}
