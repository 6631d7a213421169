"""The gRPC server, in the event loop of the API process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from app.api.kserve.grpc_calls import Calls
from app.api.kserve.grpc_methods import METHODS
from app.api.state import ApiState
from app.errors import SettingsError
from app.telemetry import logger

log = logger(__name__)

_WINDOW = 2**16  # bytes that come of a message before it is received


@asynccontextmanager
async def serving(state: ApiState, leaving: asyncio.Event) -> AsyncIterator[None]:
    """Drains once `leaving` is set, beside HTTP: both have the same time. Raises: SettingsError (the port is taken)."""
    calls, host, port = Calls(state), state.settings.host, state.settings.grpc_port
    options = [
        ("grpc.max_receive_message_length", state.settings.max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.lookahead_bytes", _WINDOW),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.so_reuseport", 0),
    ]
    grpc_server = grpc.aio.server(options=options)
    grpc_server.add_generic_rpc_handlers(_handlers(calls))
    try:
        bound = grpc_server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as exc:
        raise SettingsError(f"XYLEM_GRPC_PORT={port}: {exc}") from exc
    await grpc_server.start()
    log.info("grpc_started", port=bound)

    async def drain() -> None:
        await leaving.wait()
        calls.take_no_more()
        await grpc_server.stop(state.settings.drain_timeout_s)

    draining = asyncio.create_task(drain())
    try:
        yield
    finally:
        leaving.set()
        await draining


def _handlers(calls: Calls) -> list[Any]:
    """Handlers by service; messages come as bytes."""
    # Clients send one message. As a stream of one it is received when the key is checked, and not before that.
    services: dict[str, dict[str, Any]] = {}
    for path, method in METHODS.items():
        _, service, name = path.split("/")
        make = grpc.stream_stream_rpc_method_handler if method.streams else grpc.stream_unary_rpc_method_handler
        services.setdefault(service, {})[name] = make(
            calls.handled(path, method), response_serializer=method.answer.SerializeToString
        )
    return [grpc.method_handlers_generic_handler(service, handlers) for service, handlers in services.items()]
