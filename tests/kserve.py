"""A deployment that serves the Open Inference Protocol, and a client that has nothing but the messages."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from app.api.kserve.protocol import MESSAGES, SERVICE
from tests.serving import serving
from tests.stack import Stack, free_port, mock_pool

POOL, EMBED = "decode-pool-a", "embed-pool"
DIMENSIONS = 384


@contextmanager
def kserve(valkey_url: str, path: Path, **env: str) -> Iterator[Stack]:
    """One API replica with a port for gRPC, a worker that generates and one that embeds."""
    embed = mock_pool(model="embedder") | {"task": "embed"}
    port = str(free_port())
    with serving(valkey_url, path, {POOL: mock_pool(), EMBED: embed}, XYLEM_GRPC_PORT=port, **env) as s:
        yield s


@asynccontextmanager
async def grpc_client(s: Stack, port: str = "") -> AsyncIterator["Client"]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port or s.env['XYLEM_GRPC_PORT']}") as channel:
        yield Client(channel)


class Client:
    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def call(self, method: str, message: Any = None, **how: Any) -> Any:
        """Raises: grpc.aio.AioRpcError."""
        request = MESSAGES[f"{method}Request"]
        rpc = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=MESSAGES[f"{method}Response"].FromString,
        )
        return await rpc(request() if message is None else message, timeout=60, **how)

    def stream(self, **how: Any) -> Any:
        """An open ModelStreamInfer."""
        rpc = self._channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
            response_deserializer=MESSAGES["ModelStreamInferResponse"].FromString,
        )
        return rpc(timeout=how.pop("timeout", 60), **how)


def asked(text: str, *, model: str = "mock", streams: bool = False, id: str = "", **parameters: Any) -> Any:  # noqa: A002 (the field's name)
    """A request for a text's continuation, or its embedding."""
    message = MESSAGES["ModelInferRequest"](model_name=model, id=id)
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    if streams:
        message.inputs.add(name="streaming", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return message


def texts(response: Any) -> dict[str, str]:
    """Its outputs of one text each."""
    raws = zip(response.outputs, response.raw_output_contents, strict=True)
    return {out.name: raw[4:].decode() for out, raw in raws}
