"""The largest bodies that each endpoint takes, and the worst: nobody else's stream waits for them.

What is asserted is the CPU time of the event loop's thread, at a stretch, by a yardstick that is timed beside it
(`tests/metered.py`): the machine may do other things.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

from app.api.kserve.protocol import SERVICE
from app.endpoints import COSTS
from tests.kserve import asked, grpc_client
from tests.prompt_embeds import encoded, file, rows
from tests.serving import begin
from tests.stack import PYTHON, Stack, free_port, mock_pool, stack, wait_until
from tests.worst_requests import FORM, MAX_BODY, bodies, bound_of, filled

POOL, EMBED, CONTEXT = "decode-pool-a", "embed-pool", 131_072
MOST_MS = 50.0
TOGETHER = 2**18  # tokens
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
WORDS = "The quick brown fox jumps over the lazy dog, again. "


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A model of a long context."""
    pool = mock_pool(max_model_len=CONTEXT, total_blocks=64_000, step_ms=0.1, step_ms_per_sequence=0)
    embedder = mock_pool(model="vectors", dimensions=512, step_ms=0.1) | {"task": "embed"}
    pools = {POOL: pool | {"prompt_embeds": True}, EMBED: embedder}
    env = {"XYLEM_DEPLOYMENT": "large-bodies", "XYLEM_LOG_LEVEL": "warning", "XYLEM_GRPC_PORT": str(free_port())}
    with stack(valkey_url, tmp_path_factory.mktemp("large-bodies"), pools, **env) as s:
        s.spawn("api", PYTHON, "-m", "tests.metered", str(s.directory / "held"))
        begin(s)
        yield s
        assert "Traceback" not in s.log("api")


@pytest.fixture
def ask(served: Stack) -> Iterator[Callable[..., httpx.Response]]:
    """A POST of a body; at the end of a test nothing may have held the loop for longer than `MOST_MS`."""
    holds_path = served.directory / "held"
    with httpx.Client(base_url=served.url, timeout=120) as client:

        def post(
            path: str, raw: bytes, kind: str = "application/json", method: str = "POST", **headers: str
        ) -> httpx.Response:
            return client.request(method, path, content=raw, headers={"content-type": kind, **headers})

        assert post(TEXT, b'{"model": "mock", "prompt": "warm", "max_tokens": 1}').status_code == 200
        holds_path.write_text("")
        yield post
        wait_until(lambda: "xylem_requests_in_flight 0.0" in client.get("/metrics").text, "all have ended")
    over = [line for line in holds_path.read_text().splitlines() if float(line.split()[0]) > MOST_MS]
    assert not over


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "mock", "max_tokens": 1} | fields).encode()


def test_the_longest_prompt_as_token_ids_is_served(ask: Callable[..., httpx.Response]) -> None:
    answer = ask(TEXT, body(prompt=[2047] * (CONTEXT - 1)))
    assert answer.json()["usage"]["prompt_tokens"] == CONTEXT - 1


def test_the_largest_embedding_is_served(ask: Callable[..., httpx.Response]) -> None:
    count = 48_000
    embedding = encoded(file(("F32", [count, 64], rows(1, 480, 64) * 100)))
    assert len(embedding) > 0.97 * MAX_BODY
    assert ask(TEXT, body(prompt_embeds=embedding)).json()["usage"]["prompt_tokens"] == count


def test_as_many_prompts_as_a_request_may_have_are_served(ask: Callable[..., httpx.Response]) -> None:
    each = TOGETHER // 128
    answer = ask(TEXT, body(prompt=[[2000 + i % 40] * each for i in range(128)], logit_bias={"5": 1}))
    assert answer.json()["usage"]["prompt_tokens"] == TOGETHER


@pytest.mark.parametrize("n", [1, 2])
def test_the_longest_prompts_are_echoed(ask: Callable[..., httpx.Response], n: int) -> None:
    answer = ask(TEXT, body(prompt=[1500] * (CONTEXT - 1), echo=True, n=n))
    assert len(answer.json()["choices"]) == n


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_conversation_of_the_most_messages_is_served(ask: Callable[..., httpx.Response], path: str) -> None:
    messages = [{"role": "user", "content": WORDS[:20]}] * 4096
    responses = {"input": messages, "max_tokens": None, "max_output_tokens": 1}
    fields = responses if path == RESPONSES else {"messages": messages}
    answer = ask(path, body(**fields))
    usage = answer.json()["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) > 4096 * 4


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, "/tokenize"])
def test_thousands_of_pictures_are_refused(ask: Callable[..., httpx.Response], path: str) -> None:
    """Each of another URL: all are looked at, for the name of the one that is refused."""

    def part(number: int) -> dict[str, Any]:
        if path == RESPONSES:
            return {"type": "input_image", "image_url": f"https://a/{number}"}
        if path == MESSAGES:
            return {"type": "image", "source": {"type": "url", "url": f"https://a/{number}"}}
        return {"type": "image_url", "image_url": {"url": f"https://a/{number}"}}

    messages = [{"role": "user", "content": [part(number) for number in range(turn, turn + 4000)]} for turn in range(4)]
    fields = {"input": messages, "max_output_tokens": 1} if path == RESPONSES else {"messages": messages}
    answer = ask(path, body(**({"max_tokens": None} if path in (RESPONSES, "/tokenize") else {}) | fields))
    assert answer.status_code == 400
    assert "takes no pictures" in answer.text


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES])
def test_a_text_that_nearly_fills_the_context_is_served(ask: Callable[..., httpx.Response], path: str) -> None:
    text = WORDS * (CONTEXT // 30)
    content = {TEXT: {"prompt": text}, CHAT: {"messages": [{"role": "user", "content": text}]}}
    fields = content.get(path) or {"input": text, "max_tokens": None, "max_output_tokens": 1}
    assert ask(path, body(**fields)).status_code == 200


@pytest.mark.parametrize(("path", "unit"), [
    (TEXT, WORDS), (TEXT, "\u4e2d"), (TEXT, '"'), (TEXT, "\\"), (TEXT, ","),
    (CHAT, WORDS), (CHAT, '"'), (RESPONSES, WORDS), (RESPONSES, "\u4e2d"), ("/tokenize", WORDS),
])  # fmt: skip
def test_the_longest_text_is_refused(ask: Callable[..., httpx.Response], path: str, unit: str) -> None:
    """All of it in one string, which a parser can't tell from a short one."""
    escaped_unit = json.dumps(unit).encode()[1:-1]
    text = escaped_unit * ((MAX_BODY - 200) // len(escaped_unit))
    before = {
        CHAT: b'{"model": "mock", "messages": [{"role": "user", "content": "%b"}]}',
        RESPONSES: b'{"model": "mock", "input": "%b"}',
    }
    answer = ask(path, before.get(path, b'{"model": "mock", "prompt": "%b"}') % text)
    assert answer.status_code == 400
    assert len(answer.content) < 1000
    if path != "/tokenize":
        assert answer.json()["error"]["code"] == "context_length_exceeded"


ADMIN = f"/admin/pools/{POOL}/limits"
ALL = (CHAT, TEXT, RESPONSES, MESSAGES, "/tokenize", "/detokenize", "/v1/batches", ADMIN)
WORST: dict[str, tuple[tuple[str, ...], bytes, bytes, bytes]] = {
    "token ids": ((TEXT,), b'{"model": "mock", "prompt": [', b"1", b"]}"),
    "prompts": ((TEXT,), b'{"model": "mock", "prompt": [', b'"a"', b"]}"),
    "prompts of ids": ((TEXT,), b'{"model": "mock", "prompt": [', b"[1]", b"]}"),
    "messages": (
        (CHAT, MESSAGES, "/tokenize"),
        b'{"model": "mock", "messages": [', b'{"role":"user","content":"a"}', b"]}",
    ),
    "parts": (
        (CHAT, MESSAGES, "/tokenize"),
        b'{"model": "mock", "messages": [{"role":"user","content":[', b'{"type":"text","text":"a"}', b"]}]}",
    ),
    "inputs": ((RESPONSES,), b'{"model": "mock", "input": [', b'{"role":"user","content":"a"}', b"]}"),
    "annotations": (
        (RESPONSES,),
        b'{"model": "mock", "input": [{"role":"user","content":[{"type":"text","text":"a","annotations":[', b"1",
        b"]}]}]}",
    ),
    "stop ids": ((CHAT,), b'{"model": "mock", "messages": [], "stop_token_ids": [', b"1", b"]}"),
    "ids to decode": (("/detokenize",), b'{"model": "mock", "tokens": [', b"1.5", b"]}"),
    "metadata": (("/v1/batches", RESPONSES), b'{"model": "mock", "metadata": {', b'"a":"a"', b"}}"),
    "an unknown list": (ALL, b'{"model": "mock", "x": [', b"1", b"]}"),
    "lists in lists": (ALL, b'{"model": "mock", "x": [', b"[" * 150 + b"]" * 150, b"]}"),
    "nulls": (ALL, b'{"model": "mock", "y": null, "x": [', b"{}", b"]}"),
    "null fields": (ALL, b'{"model": 1, ', b'"x":null', b"}"),
    "no end": (ALL, b"", b"[", b""),
}  # fmt: skip


@pytest.mark.parametrize("size", [15 * 2**10, 300 * 2**10, MAX_BODY])
@pytest.mark.parametrize("worst", WORST)
def test_bodies_of_many_values_are_refused(ask: Callable[..., httpx.Response], worst: str, size: int) -> None:
    """The refusal comes before they are built, or while that takes no time."""
    paths, before, item, after = WORST[worst]
    for path in paths:
        answer = ask(path, filled(before, item, after, size), method="PATCH" if path == ADMIN else "POST")
        good = {200} if size < 2**16 else set()  # so few values may be a good request
        assert answer.status_code in {400, 413} | good
        assert len(answer.content) < 2**16


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize("raw", [
    b'{"model": "mock", "%b": 1}' % (b"x" * 10**6), b'{"prompt": "a", "tokens": [], "model": "%b"}' % (b"x" * 10**6),
    b'{"model": "%b", "messages": [{"role": "user", "content": "a"}], "input": "a"}' % (b"x" * 10**6),
    b'{"input_file_id": "%b", "endpoint": "%b", "completion_window": "24h"}' % (b"x" * 20_000, b"y" * 20_000),
    b'{"input_file_id": "%b", "endpoint": "/v1/completions", "completion_window": "24h"}' % (b"x" * 20_000),
    b'{"input_file_id": "%b", "endpoint": "/v1/completions", "completion_window": "%b"}' % (b"x" * 20, b"y" * 20_000),
])  # fmt: skip
def test_a_refusal_repeats_no_long_text(ask: Callable[..., httpx.Response], path: str, raw: bytes) -> None:
    """The client knows what it sent."""
    answer = ask(path, raw, method="PATCH" if path == ADMIN else "POST")
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 1000


def test_detokenize_takes_as_many_ids_as_prompts_may_have(ask: Callable[..., httpx.Response]) -> None:
    answer = ask("/detokenize", json.dumps({"model": "mock", "tokens": [1500] * TOGETHER}).encode())
    assert answer.status_code == 200
    answer = ask("/detokenize", json.dumps({"model": "mock", "tokens": [1] * (TOGETHER + 1)}).encode())
    assert answer.status_code == 400


def test_tokenize_takes_longer_texts_than_the_context(ask: Callable[..., httpx.Response]) -> None:
    """Longer ones than the context, which is what one asks for."""
    answer = ask("/tokenize", json.dumps({"model": "mock", "prompt": "a" * TOGETHER}).encode())
    assert CONTEXT < answer.json()["count"] <= TOGETHER
    assert len(answer.json()["tokens"]) == answer.json()["count"]


def test_biases_of_unknown_tokens_or_too_many_are_refused(ask: Callable[..., httpx.Response]) -> None:
    biases = {str(i): 1 for i in range(2**16)}
    assert ask(TEXT, body(prompt="a", logit_bias=biases)).status_code == 400  # most of them are no tokens of it
    assert ask(TEXT, body(prompt=["a"] * 2, logit_bias=biases)).json()["error"]["param"] == "logit_bias"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_whole_answer_may_have_many_logprobs(ask: Callable[..., httpx.Response], path: str) -> None:
    """Made of a quarter of a million alternatives at once."""
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20}
    fields = chat if path == CHAT else {"prompt": "a", "logprobs": 20}
    answer = ask(path, body(**fields | {"n": 128, "max_tokens": 100, "ignore_eos": True}))
    assert answer.json()["usage"]["completion_tokens"] == 12_800


@pytest.mark.parametrize(("logprobs", "tokens"), [(0, 20_480), (5, 3413), (20, 975)])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_an_echoed_prompt_are_bounded(
    ask: Callable[..., httpx.Response], logprobs: int, tokens: int, stream: bool
) -> None:
    """The log probabilities come at once, as one message."""
    fields = {"echo": True, "logprobs": logprobs, "stream": stream}
    answer = ask(TEXT, body(prompt=[1500] * tokens, **fields))
    assert answer.status_code == 200
    assert answer.text.count('"top_logprobs"') >= 1
    error_answer = ask(TEXT, body(prompt=[1500] * (tokens + 21), **fields))
    assert (error_answer.status_code, error_answer.json()["error"]["param"]) == (400, "logprobs")


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_of_many_logprobs_is_shown_at_its_end_and_afterwards(
    served: Stack, ask: Callable[..., httpx.Response], stream: bool
) -> None:
    """Its last events say all of it once more, and so does each GET."""
    fields = {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 20, "ignore_eos": True}
    raw = json.dumps({"model": "mock", "max_output_tokens": 4000, "stream": stream, **fields}).encode()
    answer = ask(RESPONSES, raw)
    (last,) = [line for line in answer.text.splitlines() if '"response.incomplete"' in line and "data" in line][
        -1:
    ] or ["data: " + json.dumps({"response": answer.json()})]
    response = json.loads(last.removeprefix("data: "))["response"]
    assert response["usage"]["output_tokens"] == 4000
    stored_response = httpx.get(f"{served.url}{RESPONSES}/{response['id']}", timeout=60).json()
    assert len(stored_response["output"][0]["content"][0]["logprobs"]) == 4000


EVERY = [path for path, cost in COSTS.items() if cost.takes_body and SERVICE not in path]


@pytest.mark.parametrize("path", EVERY)
def test_no_endpoint_that_takes_a_body_holds_the_loop(ask: Callable[..., httpx.Response], path: str) -> None:
    """The bodies have the most bytes that are read at once.

    One is as long as the endpoint's bound lets through, the other twice as long.
    """
    for size in (bound_of(path) - 1000, 2 * bound_of(path)):
        for request in bodies(path, size):
            answer = ask(request.path, request.content, request.kind, request.method)
            assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:200])
            assert len(answer.content) < 2**16


@pytest.mark.parametrize("path", ["/v2/models/vectors/infer", "/v1/embeddings"])
def test_a_million_numbers_are_answered(ask: Callable[..., httpx.Response], path: str) -> None:
    """Vectors of as many texts as there may be: 20 MB that are neither written nor copied on the event loop."""
    texts = ["a"] * 2048
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [2048], "data": texts}
    fields = {"inputs": [tensor]} if path.startswith("/v2") else {"model": "vectors", "input": texts}
    answer = ask(path, json.dumps(fields).encode())
    assert answer.status_code == 200
    if path.startswith("/v2"):
        (vectors,) = answer.json()["outputs"]
        assert (vectors["shape"], len(vectors["data"])) == ([2048, 512], 2048 * 512)


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_a_tensor_of_millions_of_values_is_refused_before_they_are_built(
    ask: Callable[..., httpx.Response], datatype: str
) -> None:
    """The values come as bytes behind the JSON, where an empty text takes four."""
    binary = bytes(MAX_BODY - 1000)
    head = {"name": "text_input", "datatype": datatype, "shape": [1], "parameters": {"binary_data_size": len(binary)}}
    raw = json.dumps({"inputs": [head]}).encode()
    answer = ask("/v2/models/mock/infer", raw + binary, **{"inference-header-content-length": str(len(raw))})
    assert answer.status_code == 400
    assert "has more than 2048 values" in answer.text


def test_a_message_of_grpc_of_millions_of_values_is_refused_before_they_are_built(
    served: Stack, ask: Callable[..., httpx.Response]
) -> None:
    """Its fields, and the texts in one of them."""
    many, raw = asked("a"), asked("a")
    many.inputs[0].contents.bytes_contents.extend([b""] * 5_000_000)
    raw.inputs[0].ClearField("contents")
    raw.raw_input_contents.append(bytes(MAX_BODY - 1000))

    async def send() -> None:
        async with grpc_client(served) as client:
            for message in (many, raw):
                with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                    await client.call("ModelInfer", message)

    asyncio.run(send())


@pytest.mark.parametrize("content", [b"\r\n--", b"\r", b"\n", b"-", b"{}\n"])
def test_a_file_may_have_any_bytes(ask: Callable[..., httpx.Response], content: bytes) -> None:
    raw = (
        b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\ncontent-disposition: form-data; '
    )
    raw += b'name="file"; filename="f"\r\n\r\n' + content * (MAX_BODY // len(content)) + b"\r\n--x--\r\n"
    assert ask("/v1/files", raw, FORM).status_code == 200
