"""Tests that bad input is refused soon, with the right status, in OpenAI's shape, and without a traceback."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.serving import client_of, served_by, serving
from tests.stack import BIN, Stack, free_port, mock_pool, stack, wait_until

POOL, IDLE_POOL = "decode-pool-a", "decode-pool-b"
CONTEXT, MAX_BODY = 256, 50_000
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
JSON = {"content-type": "application/json"}
MESSAGES = [{"role": "user", "content": "hello"}]
HELLO: dict[str, dict[str, Any]] = {
    CHAT: {"model": "mock", "messages": MESSAGES},
    TEXT: {"model": "mock", "prompt": "hello"},
    RESPONSES: {"model": "mock", "input": "hello"},
}


# One worker of the model `mock`; the model `idle` has none.
served = served_by(
    {POOL: mock_pool(max_model_len=CONTEXT), IDLE_POOL: mock_pool(model="idle")}, {"worker": POOL},
    XYLEM_MAX_BODY=str(MAX_BODY),
)  # fmt: skip


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refusal in OpenAI's shape, which is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text
    assert 'File "' not in response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    return error


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("raw", [b"", b"{", b'{"model": "mock",}', b"\xff\xfe", b"[]", b"null", b'"text"'])
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, path: str, raw: bytes) -> None:
    """The refusal is a 400 that says so."""
    error = refusal(http.post(path, content=raw, headers=JSON), 400)
    assert "JSON" in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "param"), [
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "text"}}}]},
     "tools.0.function.parameters"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages.0.tool_call_id"),
    (CHAT, {"chat_template": "{{ messages }}"}, "chat_template"),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
    (CHAT, {"reasoning_effort": "enormous"}, "reasoning_effort"),
    (CHAT, {"continue_final_message": True}, "continue_final_message"),
    (TEXT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "refusal"}]}]}, "messages.0.content.0.type"),
    (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools.0.type"),
    (CHAT, {"store": "yes"}, "store"),
    (CHAT, {"echo": True}, "echo"),
    (CHAT, {"temprature": 0.5}, "temprature"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "alien", "content": "x"}]}, "messages.0.role"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages.0.tool_calls"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": "many"}, "max_tokens"),
    (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT, {"temperature": 2.1}, "temperature"),
    (CHAT, {"temperature": "hot"}, "temperature"),
    (CHAT, {"top_p": 0}, "top_p"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 129}, "n"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"logprobs": 3}, "logprobs"),
    (CHAT, {"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    (CHAT, {"min_tokens": 9, "guided_regex": "a"}, "min_tokens"),
    (TEXT, {"min_tokens": 9, "max_tokens": 12, "guided_choice": ["a"]}, "min_tokens"),
    (CHAT, {"logit_bias": {"hello": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"5": 1000}}, "logit_bias.5"),
    (CHAT, {"timeout": 0}, "timeout"),
    (CHAT, {"stop": ""}, "stop"),
    (TEXT, {"best_of": 3}, "best_of"),
    (TEXT, {"suffix": "x"}, "suffix"),
    (TEXT, {"messages": MESSAGES}, "messages"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": ["a", ""]}, "prompt"),
    (TEXT, {"prompt": [[1], []]}, "prompt"),
    (TEXT, {"prompt": ["a"] * 129}, "prompt"),
    (TEXT, {"prompt": [10**6]}, "prompt"),
    (TEXT, {"prompt": [[1], [10**6]]}, "prompt"),
    (TEXT, {"logprobs": 21}, "logprobs"),
    (TEXT, {"max_tokens": 0}, "max_tokens"),
    (TEXT, {"seed": 2**63}, "seed"),
])  # fmt: skip
def test_what_is_wrong_is_named(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """A 400 with the field in `param` and in the message, also where a stream was asked for."""
    error = refusal(http.post(path, json=HELLO[path] | fields | {"stream": stream}), 400)
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_value"
    assert error["param"] == param
    assert param.rsplit(".", maxsplit=1)[-1] in error["message"].lower() or "Token ids" in error["message"]


def test_stream_options_need_a_stream(http: httpx.Client) -> None:
    """OpenAI requires it too."""
    error = refusal(http.post(CHAT, json=HELLO[CHAT] | {"stream_options": {"include_usage": True}}), 400)
    assert error["param"] == "stream_options"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "said"), [
    (TEXT, {"prompt": [5] * CONTEXT}, "you requested 272 tokens (256 in the prompt, 16 in the completion)"),
    (TEXT, {"prompt": [5] * (CONTEXT + 1)}, "your prompt resulted in 257 tokens"),
    (TEXT, {"prompt": [[5], [5] * 1000]}, "your prompt resulted in 1000 tokens"),
    (TEXT, {"prompt": [5] * (CONTEXT - 10), "max_tokens": 11},
     "you requested 257 tokens (246 in the prompt, 11 in the completion)"),
    (TEXT, {"prompt": [5], "max_tokens": CONTEXT}, "you requested 257 tokens (1 in the prompt, 256 in the completion)"),
    (TEXT, {"prompt": " word" * 4 * CONTEXT}, "your prompt resulted in at least {} tokens"),
    (CHAT, {"messages": [{"role": "user", "content": " word" * 4 * CONTEXT}]},
     "your messages resulted in at least {} tokens"),
    (CHAT, {"max_tokens": CONTEXT}, "you requested {} tokens ({} in the messages, 256 in the completion)"),
    (CHAT, {"max_completion_tokens": 9999}, "you requested {} tokens ({} in the messages, 9999 in the completion)"),
    (RESPONSES, {"input": " word" * 4 * CONTEXT}, "your input resulted in at least {} tokens"),
    (RESPONSES, {"max_output_tokens": CONTEXT}, "you requested {} tokens ({} in the input, 256 in the completion)"),
])  # fmt: skip
def test_what_does_not_fit_the_context_is_refused_in_openais_words(
    http: httpx.Client, path: str, fields: dict[str, Any], said: str, stream: bool
) -> None:
    """Clients look for the code or for the message's beginning, and read the numbers in it."""
    error = refusal(http.post(path, json=HELLO[path] | fields | {"stream": stream}), 400)
    assert error["code"] == "context_length_exceeded"
    of = {TEXT: "prompt", CHAT: "messages", RESPONSES: "input"}[path]
    assert error["param"] == of
    advice = f"{of} or completion" if "completion" in said else of
    words = (
        f"This model's maximum context length is 256 tokens. However, {said}. Please reduce the length of the {advice}."
    )
    pattern = re.escape(words).replace(re.escape("{}"), r"(\d+)")
    match = re.fullmatch(pattern, error["message"])
    assert match, error["message"]
    assert all(int(total) > CONTEXT for total in match.groups()[:1])


def test_what_just_fits_the_context_is_served(http: httpx.Client) -> None:
    """The limit is exact."""
    answer = http.post(TEXT, json=HELLO[TEXT] | {"prompt": [5] * (CONTEXT - 10), "max_tokens": 10, "ignore_eos": True})
    assert answer.json()["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, HELLO[CHAT]), (TEXT, HELLO[TEXT]),
    ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]}),
])  # fmt: skip
def test_an_unknown_model_is_named_with_those_that_are_served(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    """404 model_not_found, as OpenAI answers."""
    error = refusal(http.post(path, json=body | {"model": "gpt-nonsense"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "gpt-nonsense" in error["message"]
    assert "mock" in error["message"]


def test_an_unknown_model_is_not_listed(http: httpx.Client) -> None:
    """GET /v1/models/<name> is 404 too."""
    assert refusal(http.get("/v1/models/gpt-nonsense"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_a_body_over_the_limit_is_refused(http: httpx.Client, path: str) -> None:
    """Its length is the reason, and it is refused before it is read."""
    error = refusal(http.post(path, content=b"x" * (MAX_BODY + 1), headers=JSON), 413)
    assert error["code"] == "body_too_large"
    assert str(MAX_BODY) in error["message"]


def test_a_body_over_the_limit_is_refused_without_a_length_too(http: httpx.Client) -> None:
    """A chunked upload is counted while it comes."""

    def upload() -> Iterator[bytes]:
        for _ in range(MAX_BODY // 1000 + 1):
            yield b"x" * 1000

    assert refusal(http.post(CHAT, content=upload(), headers=JSON), 413)["code"] == "body_too_large"


def test_a_chunked_body_within_the_limit_is_served(http: httpx.Client) -> None:
    """Some clients send no length."""
    body = [b'{"model": "mock", ', b'"prompt": "hello", "max_tokens": 2}']
    assert http.post(TEXT, content=iter(body), headers=JSON).json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "/", 405), ("GET", "/v1/nothing", 404), ("POST", "/v1/images", 404),
    ("PUT", CHAT, 405), ("DELETE", TEXT, 405), ("POST", "/v1/models", 405), ("POST", "/metrics", 405),
])  # fmt: skip
def test_an_unknown_route_or_method_is_refused_in_the_same_shape(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    """The openai client can read nothing else."""
    error = refusal(http.request(method, path), status)
    assert f"{method} {path}" in error["message"]


@pytest.mark.parametrize(("path", "methods"), [
    ("/v1/batches", "GET, POST"), (CHAT, "GET, POST"), ("/v1/conversations/c", "DELETE, GET, POST"),
    ("/v1/models/mock", "DELETE, GET"), (TEXT, "POST"),
])  # fmt: skip
def test_a_refused_method_is_told_all_that_the_path_has(http: httpx.Client, path: str, methods: str) -> None:
    """Whichever route declares them."""
    answer = http.request("PUT", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)


@pytest.mark.parametrize(("path", "param"), [
    ("/v1/organization/usage/completions?start_time=x", "start_time"),
    ("/v1/organization/usage/completions", "start_time"),
    ("/v1/usage?format=null", "format"),
])  # fmt: skip
def test_what_a_query_may_not_have_is_refused_in_the_same_shape(http: httpx.Client, path: str, param: str) -> None:
    """The shape is OpenAI's, not FastAPI's own."""
    assert refusal(http.get(path), 400)["param"] == param


def test_a_model_is_not_deleted(http: httpx.Client) -> None:
    """OpenAI's client has a method for it, which gets an error that it can read."""
    assert refusal(http.delete("/v1/models/mock"), 403)["code"] == "forbidden"
    assert refusal(http.delete("/v1/models/other"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, {"messages": MESSAGES}), (RESPONSES, {"input": "x", "model": None}), ("/tokenize", {"prompt": "x"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
])  # fmt: skip
def test_a_model_has_to_be_named_where_several_are_served(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """Nobody guesses."""
    answer = http.post(path, json=body)
    assert (answer.status_code, "'model' is missing" in answer.text) == (400, True)


@pytest.mark.parametrize(("path", "body"), [
    ("/tokenize", {"model": "mock"}),
    ("/tokenize", {"model": "mock", "prompt": "x", "messages": MESSAGES}),
    ("/tokenize", {"model": "mock", "prompt": 5}),
    ("/tokenize", {"model": "mock", "text": "x"}),
    ("/detokenize", {"model": "mock"}),
    ("/detokenize", {"model": "mock", "tokens": "x"}),
    ("/detokenize", {"model": "mock", "tokens": [-1]}),
    ("/detokenize", {"model": "mock", "tokens": [10**6]}),
])  # fmt: skip
def test_the_tokenizer_endpoints_refuse_what_they_do_not_understand(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    """Their refusals are like those of the other endpoints."""
    assert refusal(http.post(path, json=body), 400)["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [({"logit_bias": {"1000000": 1}}, "logit_bias"), ({"stop_token_ids": [10**6]}, "stop_token_ids")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_only_the_engine_can_refuse_is_a_400_too(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """The engine's refusal comes back over Redis before the first token: with its status, streamed or not."""
    error = refusal(http.post(path, json=HELLO[path] | fields | {"stream": stream}), 400)
    assert param in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_openai_client_raises_its_own_errors(client: openai.OpenAI, stream: bool) -> None:
    """BadRequestError and NotFoundError, with param and code."""

    def ask(**fields: Any) -> None:
        what: dict[str, Any] = {"model": "mock", "messages": MESSAGES, "stream": stream}
        client.chat.completions.create(**what | fields)

    with pytest.raises(openai.BadRequestError, match="tools") as bad:
        ask(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    assert (bad.value.param, bad.value.code, bad.value.type) == ("tools", "invalid_value", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        ask(max_tokens=10**6)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(model="gpt-nonsense")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="and nothing else"):
        client.embeddings.create(model="mock", input="x")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_model_without_a_worker_is_503_at_once(http: httpx.Client, path: str, stream: bool) -> None:
    """The model may be starting: the client is told, and does not wait."""
    began = time.monotonic()
    error = refusal(http.post(path, json=HELLO[path] | {"model": "idle", "stream": stream}), 503)
    assert time.monotonic() - began < 2
    assert error["code"] == "no_worker"


def test_after_all_these_refusals_the_server_serves_and_holds_nothing(http: httpx.Client, served: Stack) -> None:
    """No refused request left a reservation or a request in flight."""
    assert http.post(CHAT, json=HELLO[CHAT] | {"max_tokens": 3}).status_code == 200
    wait_until(
        lambda: "xylem_requests_in_flight 0.0" in http.get("/metrics").text, "no request is in flight any more", 5
    )


@pytest.fixture(scope="module")
def without_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = f"redis://127.0.0.1:{free_port()}/0"
    with serving(url, tmp_path_factory.mktemp("without-redis"), {POOL: mock_pool()}, {}) as s:
        yield s


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_without_redis_a_request_is_503_soon(without_redis: Stack, path: str, stream: bool) -> None:
    """The API runs and says what is missing; nobody hangs."""
    began = time.monotonic()
    answer = httpx.post(f"{without_redis.url}{path}", json=HELLO[path] | {"stream": stream}, timeout=20)
    assert time.monotonic() - began < 3
    error = refusal(answer, 503)
    assert error["code"] == "store_unavailable"
    assert "Redis" in error["message"]


def test_without_redis_the_api_is_live_but_not_ready(without_redis: Stack) -> None:
    """A balancer takes it out; nobody restarts it."""
    assert httpx.get(f"{without_redis.url}/live").status_code == 200
    ready = httpx.get(f"{without_redis.url}/ready", timeout=10)
    assert ready.status_code == 503
    assert ready.json()["redis"] is False
    assert httpx.get(f"{without_redis.url}/v1/models").json()["data"][0]["id"] == "mock"


def test_a_saturated_model_is_429_with_retry_after_until_there_is_room(valkey_url: str, tmp_path: Path) -> None:
    """One request runs, none may queue; the second is told when to come again, and then is served."""
    pools = {POOL: mock_pool(max_running=1, step_ms=20.0) | {"busy": {"max_held": 0}}}
    env = {"XYLEM_DEPLOYMENT": "saturated", "XYLEM_MAX_QUEUED": "0", "XYLEM_RETRY_AFTER_S": "7"}
    with (
        serving(valkey_url, tmp_path, pools, {"worker": POOL}, **env) as s,
        client_of(s.url) as client,
    ):
        long = client.completions.create(
            model="mock", prompt="hello", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(long))
        for path in (CHAT, TEXT):
            for stream in (False, True):
                answer = httpx.post(s.url + path, json=HELLO[path] | {"stream": stream}, timeout=20)
                error = refusal(answer, 429)
                assert (error["type"], error["code"]) == ("rate_limit_error", "saturated")
                assert answer.headers["retry-after"] == "7"
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="mock", prompt="hello")
        long.close()
        wait_until(
            lambda: httpx.post(s.url + TEXT, json=HELLO[TEXT], timeout=20).status_code == 200, "there is room again", 5
        )


def ended(s: Stack, proc: "subprocess.Popen[bytes]", name: str) -> str:
    """The output of a process that ended with an error and without a traceback, both of which are checked."""
    code = proc.wait(30)
    output = re.sub(r"\x1b\[[0-9;]*m", "", s.log(name))
    assert code != 0, output
    assert "Traceback" not in output
    return output


def test_a_worker_of_an_unknown_pool_ends_and_names_those_that_there_are(valkey_url: str, tmp_path: Path) -> None:
    """The same holds when it is to take several pools at once."""
    with stack(valkey_url, tmp_path, {POOL: mock_pool(), IDLE_POOL: mock_pool()}) as s:
        logs = [ended(s, s.worker(queues, name), name) for queues, name in (("nope", "one"), (f"{POOL},nope", "two"))]
    for text in logs:
        assert "nope" in text
        assert POOL in text
        assert IDLE_POOL in text


def test_an_engine_that_fails_to_load_ends_the_worker_with_the_reason(valkey_url: str, tmp_path: Path) -> None:
    """The worker was never ready: no request was sent to it."""
    pools = {POOL: mock_pool(fail_to_load="the weights are on holiday")}
    with stack(valkey_url, tmp_path, pools) as s:
        output = ended(s, s.worker(), "worker")
    assert "the weights are on holiday" in output
    assert "ready" not in output


def test_an_unknown_engine_argument_ends_the_worker_and_is_named(valkey_url: str, tmp_path: Path) -> None:
    """A typo in `args` is not a default."""
    with stack(valkey_url, tmp_path, {POOL: mock_pool(step_mss=5)}) as s:
        assert "args.step_mss=5" in ended(s, s.worker(), "worker")


def both(s: Stack, **env: str) -> list[str]:
    """The output of `xylem api` and of a worker when they refuse to start."""
    procs = {"api": s.spawn("api", str(BIN / "xylem"), "api", **env), "worker": s.worker(**env)}
    return [ended(s, proc, name) for name, proc in procs.items()]


def test_a_pools_file_with_a_wrong_key_stops_api_and_worker_and_the_key_is_named(
    valkey_url: str, tmp_path: Path
) -> None:
    """The file is named too, so that it can be found."""
    with stack(valkey_url, tmp_path, {POOL: mock_pool() | {"max_runing": 3}}) as s:
        for output in both(s):
            assert f"pools.{POOL}.max_runing=3" in output
            assert str(s.pools_file) in output


def test_a_missing_pools_file_stops_api_and_worker_and_its_variable_is_named(valkey_url: str, tmp_path: Path) -> None:
    """Both say what to set."""
    with stack(valkey_url, tmp_path, {}) as s:
        for output in both(s, XYLEM_POOLS_FILE="/nowhere/pools.yaml"):
            assert "XYLEM_POOLS_FILE=/nowhere/pools.yaml" in output


def test_a_bad_setting_stops_api_worker_and_flower_and_is_named_with_its_value(valkey_url: str, tmp_path: Path) -> None:
    """The process that can't read its settings doesn't guess."""
    with stack(valkey_url, tmp_path, {POOL: mock_pool()}) as s:
        bad = {"XYLEM_MAX_QUEUED": "a lot"}
        flower = s.spawn("flower", str(BIN / "celery"), "-A", "app", "flower", f"--port={free_port()}", **bad)
        for output in (*both(s, **bad), ended(s, flower, "flower")):
            assert "XYLEM_MAX_QUEUED='a lot'" in output
