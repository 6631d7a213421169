"""The Open Inference Protocol over gRPC: real processes and a mock engine."""

import asyncio
import json
import signal
from array import array
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from app.api.kserve.protocol import MESSAGES, SERVICE
from app.engines.mock.encoding import vector
from app.tokenizing.tokenizer import load_tokenizer
from tests.acceptance.test_embeddings import MODEL
from tests.acceptance.test_security import create, status, xylem
from tests.kserve import DIMENSIONS, EMBED, POOL, Client, asked, grpc_client, kserve, texts
from tests.stack import Stack, all_free, connects, free_port, leases, stop, wait_until

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
LONG: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True}
FINAL = "triton_final_response"
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with kserve(valkey_url, tmp_path_factory.mktemp("kserve-grpc")) as s:
        yield s


@pytest.fixture(scope="module")
def locked(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that requires keys."""
    with kserve(valkey_url, tmp_path_factory.mktemp("kserve-keys"), XYLEM_REQUIRE_KEYS="true") as s:
        yield s


@pytest.fixture
async def client(served: Stack) -> AsyncIterator[Client]:
    async with grpc_client(served) as c:
        yield c


def completion(s: Stack, prompt: str = "hello") -> str:
    """The answer of the OpenAI API."""
    body = {"model": "mock", "prompt": prompt, **GREEDY}
    text: str = httpx.post(f"{s.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
    return text


async def refused(call: Any) -> tuple[Any, str]:
    """Its code and message."""
    with pytest.raises(grpc.aio.AioRpcError) as exc_info:
        await call
    return exc_info.value.code(), exc_info.value.details() or ""


async def until(condition: Any, what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


async def test_server_and_models_say_what_they_are(client: Client) -> None:
    assert (await client.call("ServerLive")).live
    assert (await client.call("ServerReady")).ready
    assert (await client.call("ServerMetadata")).name == "xylem"
    model = await client.call("ModelMetadata", MESSAGES["ModelMetadataRequest"](name="mock"))
    assert [one.name for one in model.outputs] == ["text_output", "finish_reason"]
    assert list(model.versions) == ["1"]


@pytest.mark.parametrize(("name", "version", "ready"), [("mock", "", True), ("mock", "2", False), ("no", "", False)])
async def test_models_are_ready_or_not(client: Client, name: str, version: str, ready: bool) -> None:
    """Models that aren't there are not ready."""
    asks = MESSAGES["ModelReadyRequest"](name=name, version=version)
    assert (await client.call("ModelReady", asks)).ready is ready


async def test_a_text_is_continued_as_by_the_openai_api(served: Stack, client: Client) -> None:
    answer = await client.call("ModelInfer", asked("hello", id="seven", **GREEDY))
    assert (answer.model_name, answer.model_version, answer.id) == ("mock", "1", "seven")
    assert texts(answer) == {"text_output": completion(served), "finish_reason": "length"}


async def test_raw_inputs_and_sampling_parameters_as_an_input(served: Stack, client: Client) -> None:
    """The way to give lists."""
    parameters = json.dumps({**GREEDY, "stop": ["never"]}).encode()
    request = MESSAGES["ModelInferRequest"](model_name="mock")
    for name, text in (("text_input", b"hello"), ("sampling_parameters", parameters)):
        request.inputs.add(name=name, datatype="BYTES", shape=[1])
        request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    assert texts(await client.call("ModelInfer", request))["text_output"] == completion(served)


async def test_a_text_is_embedded(client: Client) -> None:
    answer = await client.call("ModelInfer", asked("Engines answer requests", model="embedder"))
    assert list(answer.outputs[0].shape) == [1, DIMENSIONS]
    tokens = load_tokenizer(MODEL).encode("Engines answer requests")
    assert answer.raw_output_contents[0] == array("f", vector(tokens, DIMENSIONS)).tobytes()


@pytest.mark.parametrize(
    ("request_", "code", "names"),
    [
        (asked("a", temperature="hot"), Code.INVALID_ARGUMENT, "temperature"),
        (asked("a", nonsense=1), Code.INVALID_ARGUMENT, "nonsense"),
        (asked("a", timeout=-1), Code.INVALID_ARGUMENT, "timeout"),
        (asked("a", streams=True), Code.INVALID_ARGUMENT, "ModelStreamInfer"),
        (asked("a", model="nothing"), Code.NOT_FOUND, "nothing"),
        (MESSAGES["ModelInferRequest"](model_name="mock", model_version="2"), Code.NOT_FOUND, "version 1"),
        (MESSAGES["ModelInferRequest"](model_name="mock"), Code.INVALID_ARGUMENT, "text_input"),
        (
            MESSAGES["ModelInferRequest"](model_name="mock", raw_input_contents=[b"a"]),
            Code.INVALID_ARGUMENT,
            "raw_input_contents",
        ),
    ],
    ids=["value", "parameter", "timeout", "stream", "model", "version", "no input", "raw inputs"],
)
async def test_what_can_not_be_served_is_refused_by_name(client: Client, request_: Any, code: Any, names: str) -> None:
    status_code, message = await refused(client.call("ModelInfer", request_))
    assert status_code == code
    assert names in message


async def test_methods_that_are_not_served_are_unimplemented(client: Client) -> None:
    call = client._channel.unary_unary("/inference.GRPCInferenceService/SystemSharedMemoryStatus")
    assert (await refused(call(b"")))[0] == Code.UNIMPLEMENTED


async def test_requests_of_one_stream_are_answered_side_by_side(served: Stack, client: Client) -> None:
    """The pieces of each make its whole answer, under its id; the error of one leaves the others."""
    stream = client.stream()
    prompts = {"one": "hello", "two": "good morning", "three": "Once upon a time"}
    for id_, prompt in prompts.items():
        await stream.write(asked(prompt, streams=True, id=id_, **GREEDY, triton_enable_empty_final_response=True))
    await stream.write(asked("a", streams=True, id="wrong", temperature="hot"))
    await stream.write(asked("hello", id="whole", **GREEDY))
    await stream.done_writing()
    pieces: dict[str, list[Any]] = {}
    async for message in stream:
        pieces.setdefault(message.infer_response.id, []).append(message)
    assert set(pieces) == {*prompts, "wrong", "whole"}
    (wrong,), (whole,) = pieces.pop("wrong"), pieces.pop("whole")
    assert "temperature" in wrong.error_message
    assert texts(whole.infer_response)["text_output"] == completion(served)
    assert whole.infer_response.parameters[FINAL].bool_param
    for id_, messages in pieces.items():
        assert not any(message.error_message for message in messages)
        outputs = [texts(message.infer_response) for message in messages]
        assert "".join(piece.get("text_output", "") for piece in outputs) == completion(served, prompts[id_])
        assert [piece["finish_reason"] for piece in outputs if "finish_reason" in piece] == ["length"]
        finals = [FINAL in message.infer_response.parameters for message in messages]
        assert finals == [False] * (len(messages) - 1) + [True]


async def test_an_answer_begins_before_its_stream_is_closed_for_more(client: Client) -> None:
    """Pieces come while the engine computes, and a second request may follow the first one's answer."""
    stream = client.stream()
    for id_ in ("one", "two"):
        await stream.write(asked("hello", streams=True, id=id_, **GREEDY))
        output: dict[str, str] = {}
        while "finish_reason" not in output:
            output = texts((await stream.read()).infer_response)
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF


async def test_texts_are_embedded_in_a_stream_too(client: Client) -> None:
    stream = client.stream()
    await stream.write(asked("hello", model="embedder", id="e"))
    await stream.done_writing()
    (message,) = [message async for message in stream]
    assert (message.infer_response.id, message.infer_response.outputs[0].name) == ("e", "embeddings")


def computes(s: Stack) -> bool:
    return any(lease.load.running for lease in leases(s, POOL))


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_cancels_frees_its_seat(served: Stack, client: Client, streams: bool) -> None:
    if streams:
        call: Any = client.stream()
        await call.write(asked("hello", streams=True, **LONG))
    else:
        call = asyncio.create_task(client.call("ModelInfer", asked("hello", **LONG)))
    await until(lambda: computes(served), "the engine computes")
    call.cancel()
    await until(lambda: all_free(served, POOL, EMBED), "nothing is left")


async def test_the_deadline_of_a_call_ends_the_request(served: Stack, client: Client) -> None:
    stream = client.stream(timeout=2.0)
    await stream.write(asked("hello", streams=True, **LONG))
    with pytest.raises(grpc.aio.AioRpcError) as exc_info:
        while (await stream.read()) is not grpc.aio.EOF:
            pass
    assert exc_info.value.code() == Code.DEADLINE_EXCEEDED
    await until(lambda: all_free(served, POOL), "nothing is left")


async def test_a_timeout_in_microseconds_ends_the_request(client: Client) -> None:
    """The server ends it: the client would wait for longer."""
    code, message = await refused(client.call("ModelInfer", asked("hello", timeout=200_000, **LONG)))
    assert code == Code.DEADLINE_EXCEEDED
    assert "deadline passed" in message


async def test_without_a_key_only_health_is_served(locked: Stack) -> None:
    """The key stands in the metadata, as in a header."""
    key = create(locked, [locked.url], "alice")
    model = MESSAGES["ModelReadyRequest"](name="mock")
    async with grpc_client(locked) as client:
        assert (await client.call("ServerLive")).live
        assert (await client.call("ServerReady")).ready
        assert (await refused(client.call("ServerMetadata")))[0] == Code.UNAUTHENTICATED
        assert (await refused(client.call("ModelReady", model)))[0] == Code.UNAUTHENTICATED
        assert (await refused(client.call("ModelInfer", asked("hello"))))[0] == Code.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await client.stream().read()
        for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key)):
            answer = await client.call("ModelInfer", asked("hello", **GREEDY), metadata=((name, value),))
            assert texts(answer)["finish_reason"] == "length"


def test_without_a_key_only_health_is_served_over_http(locked: Stack) -> None:
    key = create(locked, [locked.url], "bob")
    with httpx.Client(base_url=locked.url, timeout=60) as http:
        assert http.get("/v2/health/live").status_code == http.get("/v2/health/ready").status_code == 200
        for path in ("/v2", "/v2/models/mock", "/v2/models/mock/ready"):
            assert http.get(path).status_code == 401
        answer = http.post("/v2/models/mock/generate", json={"text_input": "a"})
        assert answer.status_code == 401
        assert list(answer.json()) == ["error"]
        assert http.get("/v2", headers={"authorization": f"Bearer {key}"}).status_code == 200


async def test_a_message_is_received_when_its_key_is_checked_and_so_many_of_a_key_at_once(locked: Stack) -> None:
    """Unchecked clients would fill the memory, with messages of 16 MB each that they never end."""
    dora, emil = (create(locked, [locked.url], name) for name in ("dora", "emil"))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{locked.env['XYLEM_GRPC_PORT']}") as channel:
        begin = channel.stream_unary(f"/{SERVICE}/ModelInfer")
        code, _ = await refused(begin(metadata=(("x-api-key", "wrong"),), timeout=20))
        assert code == Code.UNAUTHENTICATED
        calls = [begin(metadata=(("x-api-key", dora),), timeout=100) for _ in range(16)]
        client = Client(channel)

        async def ready(key: str) -> bool:
            model = MESSAGES["ModelReadyRequest"](name="mock")
            return bool((await client.call("ModelReady", model, metadata=(("x-api-key", key),))).ready)

        async with asyncio.timeout(60):
            while (await asyncio.wait([waiting := asyncio.ensure_future(ready(dora))], timeout=1))[0]:
                pass  # not all have begun
            assert await ready(emil)
            assert not waiting.done()
            for call in calls:
                call.cancel()
            assert await waiting


async def test_a_key_has_so_many_open_streams(locked: Stack) -> None:
    """Each may have a message of 16 MB on its way."""
    key = (("x-api-key", create(locked, [locked.url], "fay")),)
    async with grpc_client(locked) as client:
        streams = [client.stream(metadata=key) for _ in range(64)]
        for stream in streams:
            await stream.wait_for_connection()
            await stream.write(asked("hello", **GREEDY))
        for stream in streams:
            assert texts((await stream.read()).infer_response)["finish_reason"] == "length"
        code, why = await refused(client.stream(metadata=key).read())
        assert (code, "64 open streams" in why) == (Code.RESOURCE_EXHAUSTED, True)
        await streams[0].done_writing()
        assert await streams[0].read() is grpc.aio.EOF
        again = client.stream(metadata=key)
        await again.write(asked("hello", **GREEDY))
        assert texts((await again.read()).infer_response)["finish_reason"] == "length"
        for stream in (*streams, again):
            stream.cancel()


async def test_each_message_of_an_open_stream_needs_a_valid_key(locked: Stack) -> None:
    """A stream may be open for weeks, and the key be revoked meanwhile."""
    key = create(locked, [locked.url], "carol")
    async with grpc_client(locked) as client:
        stream = client.stream(metadata=(("x-api-key", key),))
        await stream.write(asked("hello", **GREEDY))
        assert texts((await stream.read()).infer_response)["finish_reason"] == "length"
        assert xylem(locked, "keys", "revoke", "carol").returncode == 0
        await until(lambda: status(locked.url, key) == 401, "the key is revoked")
        await stream.write(asked("hello", id="7", **GREEDY))
        answer = await stream.read()
        assert "not valid, or has been revoked" in answer.error_message
        assert not answer.infer_response.outputs
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_a_message_that_cannot_be_read_is_refused_as_the_clients_fault(served: Stack, client: Client) -> None:
    """A message of millions of values is refused too, and they are not built."""
    many = asked("hello")
    many.inputs[0].contents.bytes_contents.extend([b""] * 100_000)
    code, reason = await refused(client.call("ModelInfer", many))
    assert (code, reason) == (Code.INVALID_ARGUMENT, "The message has more than 8192 fields.")
    raw = asked("hello")
    raw.inputs[0].ClearField("contents")
    raw.raw_input_contents.append(bytes(2**20))
    code, reason = await refused(client.call("ModelInfer", raw))
    assert (code, reason) == (Code.INVALID_ARGUMENT, "Input 'text_input' has more than 2048 values.")
    long_name = MESSAGES["ModelReadyRequest"](name="m" * 2**17)
    assert (await refused(client.call("ModelReady", long_name)))[0] == Code.RESOURCE_EXHAUSTED


async def test_a_replica_that_ends_lets_open_streams_answer(served: Stack) -> None:
    """The replica takes no more from them: a stream that a client holds open does not hold up the end."""
    port = str(free_port())
    replica = served.api("second", port=free_port(), XYLEM_GRPC_PORT=port)
    await until(lambda: connects(int(port)), "the replica serves gRPC")
    async with grpc_client(served, port) as client:
        busy, idle = client.stream(), client.stream()
        await busy.write(asked("hello", streams=True, max_tokens=200, ignore_eos=True))
        await busy.read()
        await idle.write(asked("hello", streams=True, **GREEDY))
        await idle.read()
        ending = asyncio.create_task(asyncio.to_thread(stop, replica, timeout_s=60))
        output: dict[str, str] = {}
        while (message := await busy.read()) is not grpc.aio.EOF:
            output = texts(message.infer_response)
        assert output["finish_reason"] == "length"
        await ending
        assert replica.returncode == -signal.SIGTERM  # not killed: uvicorn ends so, once all is done


async def test_grpc_drains_beside_http(served: Stack) -> None:
    """One after the other could take twice the time that a pod has."""
    port, own = str(free_port()), free_port()
    replica = served.api("third", port=own, XYLEM_GRPC_PORT=port)
    await until(lambda: connects(int(port)), "the replica serves gRPC")
    began, body = asyncio.Event(), {"model": "mock", "prompt": "hello", "stream": True, **LONG}

    async def answered() -> str:
        """The last line of a long answer over HTTP."""
        last = ""
        async with http.stream("POST", f"http://127.0.0.1:{own}/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                began.set()
                last = line or last
        return last

    async with grpc_client(served, port) as client, httpx.AsyncClient(timeout=60) as http:
        idle = client.stream()
        await idle.write(asked("hello", streams=True, **GREEDY))
        await idle.read()
        answering = asyncio.create_task(answered())
        await began.wait()
        replica.send_signal(signal.SIGTERM)
        while await idle.read() is not grpc.aio.EOF:
            pass
        assert not answering.done(), "HTTP had ended before gRPC did"
        assert await answering == "data: [DONE]"
    await asyncio.to_thread(replica.wait, 60)
    assert replica.returncode == -signal.SIGTERM


def test_a_taken_port_is_named(served: Stack, tmp_path: Path) -> None:
    port_in_use = served.env["XYLEM_GRPC_PORT"]
    second = served.api("beside", port=free_port())
    second.wait(60)
    assert second.returncode != 0
    log = served.log("beside")
    assert f"XYLEM_GRPC_PORT={port_in_use}" in log
    assert "Traceback" not in log
