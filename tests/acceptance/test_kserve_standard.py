"""gRPC's own services beside the Open Inference Protocol: real processes and a mock engine."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from app.api.kserve.protocol import SERVICE
from app.api.kserve.standard_protocol import (
    HEALTH,
    HEALTH_MESSAGES,
    NOT_SERVING,
    REFLECTIONS,
    SERVICE_UNKNOWN,
    SERVING,
)
from tests.acceptance.test_kserve_grpc import refused, until
from tests.acceptance.test_security import create
from tests.kserve import grpc_client, kserve
from tests.stack import Stack, connects, free_port, stop

REQUEST, RESPONSE = (HEALTH_MESSAGES[f"HealthCheck{kind}"] for kind in ("Request", "Response"))


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with kserve(valkey_url, tmp_path_factory.mktemp("kserve-standard")) as s:
        yield s


def channel(s: Stack, port: str = "") -> Any:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port or s.env['XYLEM_GRPC_PORT']}")


def check(channel: Any, service: str = "") -> Any:
    rpc = channel.unary_unary(
        f"/{HEALTH}/Check", request_serializer=REQUEST.SerializeToString, response_deserializer=RESPONSE.FromString
    )
    return rpc(REQUEST(service=service), timeout=60)


def watch(channel: Any, service: str = "") -> Any:
    rpc = channel.unary_stream(
        f"/{HEALTH}/Watch", request_serializer=REQUEST.SerializeToString, response_deserializer=RESPONSE.FromString
    )
    return rpc(REQUEST(service=service), timeout=60)


async def asked(channel: Any, reflection: str, **field: str) -> Any:
    messages = REFLECTIONS[reflection]
    rpc = channel.stream_stream(
        f"/{reflection}/ServerReflectionInfo",
        request_serializer=messages["ServerReflectionRequest"].SerializeToString,
        response_deserializer=messages["ServerReflectionResponse"].FromString,
    )
    stream = rpc(timeout=60)
    await stream.write(messages["ServerReflectionRequest"](**field))
    answer = await stream.read()
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    return answer


async def test_health_is_that_of_the_server(served: Stack) -> None:
    async with channel(served) as own:
        for service in ("", SERVICE, HEALTH):
            assert (await check(own, service)).status == SERVING
        code, why = await refused(check(own, "nothing"))
        assert (code.name, "'nothing'" in why) == ("NOT_FOUND", True)
        assert (await watch(own, "nothing").read()).status == SERVICE_UNKNOWN


async def test_who_watches_is_told_when_the_server_takes_requests_and_when_it_ends(served: Stack) -> None:
    port = str(free_port())
    replica = served.api("second", port=free_port(), XYLEM_GRPC_PORT=port)
    await until(lambda: connects(int(port)), "the replica serves gRPC")
    async with channel(served, port) as own:
        stream = watch(own)
        while (status := (await stream.read()).status) != SERVING:
            assert status == NOT_SERVING
        ending = asyncio.create_task(asyncio.to_thread(stop, replica, timeout_s=60))
        assert (await stream.read()).status == NOT_SERVING
        assert await stream.read() == grpc.aio.EOF
        await ending


@pytest.mark.parametrize("reflection", REFLECTIONS)
async def test_a_client_that_knows_nothing_learns_services_and_messages_and_calls_them(
    served: Stack, reflection: str
) -> None:
    """Classes are made of what reflection tells, in a pool of their own."""
    async with channel(served) as own:
        services = await asked(own, reflection, list_services="")
        assert {one.name for one in services.list_services_response.service} == {SERVICE, HEALTH, *REFLECTIONS}
        answer = await asked(own, reflection, file_containing_symbol=SERVICE)
        (raw,) = answer.file_descriptor_response.file_descriptor_proto
        file = descriptor_pb2.FileDescriptorProto.FromString(raw)
        assert await asked(own, reflection, file_by_filename=file.name)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        method = pool.FindServiceByName(SERVICE).FindMethodByName("ModelInfer")
        asks, answers = (message_factory.GetMessageClass(one) for one in (method.input_type, method.output_type))
        request: Any = asks(model_name="mock")
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hello")
        rpc = own.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=asks.SerializeToString,
            response_deserializer=answers.FromString,
        )
        assert (await rpc(request, timeout=60)).outputs[0].name == "text_output"
        stream = pool.FindServiceByName(SERVICE).FindMethodByName("ModelStreamInfer")
        assert (stream.client_streaming, stream.server_streaming) == (True, True)
        missing = await asked(own, reflection, file_containing_symbol="nothing.at.All")
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        extensions = await asked(own, reflection, all_extension_numbers_of_type=f"{SERVICE}")
        assert extensions.error_response.error_code == grpc.StatusCode.UNIMPLEMENTED.value[0]


async def test_where_keys_are_required_only_check_is_open(
    valkey_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Check answers for the whole server, and reads no message of somebody without a key."""
    with kserve(valkey_url, tmp_path_factory.mktemp("kserve-locked"), XYLEM_REQUIRE_KEYS="true") as s:
        key = (("x-api-key", create(s, [s.url], "alice")),)
        async with channel(s) as own:
            assert (await check(own)).status == (await check(own, "nothing")).status == SERVING
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await watch(own).read()
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await asked(own, next(iter(REFLECTIONS)), list_services="")
        async with grpc_client(s) as client:
            assert (await client.call("ServerMetadata", metadata=key)).name == "xylem"
