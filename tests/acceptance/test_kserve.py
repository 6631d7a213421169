"""The Open Inference Protocol over HTTP: real processes and a mock engine."""

import json
import struct
from array import array
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.engines.mock.encoding import vector
from app.tokenizing.tokenizer import load_tokenizer
from tests.acceptance.test_document import declared
from tests.acceptance.test_embeddings import MODEL
from tests.kserve import DIMENSIONS, POOL, kserve
from tests.stack import Stack, all_free, wait_until

TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hello"]}
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with kserve(valkey_url, tmp_path_factory.mktemp("kserve")) as s:
        yield s


@pytest.fixture(scope="module")
def http(served: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


def completion(http: httpx.Client, **more: Any) -> str:
    """The answer of the OpenAI API to `hello`."""
    body = {"model": "mock", "prompt": "hello", **GREEDY, **more}
    text: str = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    return text


def infer(http: httpx.Client, model: str = "mock", **body: Any) -> httpx.Response:
    return http.post(f"/v2/models/{model}/infer", json={"inputs": [TEXT], "parameters": GREEDY, **body})


def unpacked(raw: bytes) -> list[str]:
    """Texts with their lengths before them."""
    values = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        values.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return values


def test_server_and_models_say_what_they_are(http: httpx.Client) -> None:
    assert http.get("/v2/health/live").status_code == http.get("/v2/health/ready").status_code == 200
    assert http.get("/v2").json()["name"] == "xylem"
    model = http.get("/v2/models/mock").json()
    assert (model["name"], model["versions"]) == ("mock", ["1"])
    assert [one["name"] for one in model["outputs"]] == ["text_output", "finish_reason"]
    assert http.get("/v2/models/embedder/versions/1").json()["outputs"][0]["datatype"] == "FP32"
    assert http.get("/v2/models/mock/ready").status_code == 200
    assert http.get("/v2/models/mock/versions/1/ready").status_code == 200


@pytest.mark.parametrize("path", ["", "/ready", "/versions/2", "/versions/2/ready"])
def test_models_and_versions_that_are_not_there_are_not_found(http: httpx.Client, path: str) -> None:
    """The error has the protocol's shape."""
    answer = http.get(f"/v2/models/{'mock' if 'versions' in path else 'nothing'}{path}")
    assert answer.status_code == 404
    assert list(answer.json()) == ["error"]
    assert ("'mock'" if "versions" in path else "'nothing'") in answer.json()["error"]


def test_a_text_is_continued_as_by_the_openai_api(http: httpx.Client) -> None:
    answer = infer(http, id="seven").json()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("mock", "1", "seven")
    assert {one["name"]: one["data"] for one in answer["outputs"]} == {
        "text_output": [completion(http)],
        "finish_reason": ["length"],
    }


def test_only_the_outputs_that_are_asked_for_come(http: httpx.Client) -> None:
    answer = infer(http, outputs=[{"name": "finish_reason"}]).json()
    assert [one["name"] for one in answer["outputs"]] == ["finish_reason"]


def test_tensors_go_both_ways_as_bytes_behind_the_json(http: httpx.Client) -> None:
    """The request has a text; the answer has bytes beside JSON."""
    raw = struct.pack("<I", 5) + b"hello"
    tensor = {k: v for k, v in TEXT.items() if k != "data"} | {"parameters": {"binary_data_size": len(raw)}}
    outputs = [{"name": "text_output", "parameters": {"binary_data": True}}, {"name": "finish_reason"}]
    head = json.dumps({"inputs": [tensor], "parameters": GREEDY, "outputs": outputs}).encode()
    headers = {LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
    answer = http.post("/v2/models/mock/infer", content=head + raw, headers=headers)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers[LENGTH])
    text, reason = json.loads(answer.content[:length])["outputs"]
    assert unpacked(answer.content[length:]) == [completion(http)]
    assert text["parameters"] == {"binary_data_size": len(answer.content) - length}
    assert reason["data"] == ["length"]


def test_texts_are_embedded_as_numbers_and_as_bytes(http: httpx.Client) -> None:
    """One row a text."""
    some = ["The cat sat on the mat.", "Engines answer requests"]
    rows = [array("f", vector(load_tokenizer(MODEL).encode(text), DIMENSIONS)) for text in some]
    body = {"inputs": [TEXT | {"shape": [2], "data": some}]}
    (out,) = http.post("/v2/models/embedder/infer", json=body).json()["outputs"]
    assert (out["name"], out["datatype"], out["shape"]) == ("embeddings", "FP32", [2, DIMENSIONS])
    assert out["data"] == [number for row in rows for number in row]
    as_bytes = http.post("/v2/models/embedder/infer", json=body | {"parameters": {"binary_data_output": True}})
    assert as_bytes.content[int(as_bytes.headers[LENGTH]) :] == b"".join(row.tobytes() for row in rows)


@pytest.mark.parametrize(
    "body", [{"parameters": GREEDY}, GREEDY, {"parameters": {**GREEDY, "timeout": 30_000_000}, "stream": False}]
)
def test_generate_takes_parameters_in_both_places(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/v2/models/mock/generate", json={"text_input": "hello", "id": "seven", **body}).json()
    assert answer == {
        "id": "seven",
        "model_name": "mock",
        "model_version": "1",
        "text_output": completion(http),
        "finish_reason": "length",
    }


def test_without_max_tokens_an_answer_has_20(http: httpx.Client) -> None:
    """The generate extension has this default."""
    text = completion(http, max_tokens=20)
    free = {"temperature": 0, "ignore_eos": True}
    assert http.post("/v2/models/mock/generate", json={"text_input": "hello", **free}).json()["text_output"] == text
    assert infer(http, parameters=free).json()["outputs"][0]["data"] == [text]


def test_pieces_of_a_stream_make_the_whole_answer(http: httpx.Client) -> None:
    """Only the last event has a finish reason."""
    body = {"text_input": "hello", "parameters": GREEDY}
    with http.stream("POST", "/v2/models/mock/versions/1/generate_stream", json=body) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == completion(http)
    assert [event.get("finish_reason") for event in events] == [None] * (len(events) - 1) + ["length"]


def test_sampling_parameters_may_be_an_input(http: httpx.Client) -> None:
    """A JSON object, its numbers as texts too, with lists."""
    parameters = {"temperature": "0", "max_tokens": "8", "ignore_eos": True, "stop": ["never"]}
    tensor = TEXT | {"name": "sampling_parameters", "data": [json.dumps(parameters)]}
    answer = infer(http, inputs=[TEXT, tensor], parameters={}).json()
    assert answer["outputs"][0]["data"] == [completion(http)]


@pytest.mark.parametrize(
    ("path", "body", "status", "names"),
    [
        ("mock/infer", {"parameters": {"temperature": "hot"}}, 400, "temperature"),
        ("mock/infer", {"parameters": {"n": 2}}, 400, "'n'"),
        ("mock/infer", {"parameters": {"nonsense": 1}}, 400, "nonsense"),
        ("mock/infer", {"parameters": {"timeout": 0.5}}, 400, "'timeout'"),
        ("mock/infer", {"inputs": []}, 400, "text_input"),
        ("mock/infer", {"inputs": [TEXT | {"name": "pixels"}]}, 400, "'pixels'"),
        ("mock/infer", {"inputs": [TEXT | {"datatype": "INT8"}]}, 400, "INT8"),
        ("mock/infer", {"inputs": [TEXT | {"shape": [2]}]}, 400, "'text_input'"),
        ("mock/infer", {"outputs": [{"name": "logits"}]}, 400, "logits"),
        ("mock/infer", {"inputs": [TEXT, TEXT | {"name": "sampling_parameters"}]}, 400, "sampling_parameters"),
        ("mock/versions/2/infer", {}, 404, "version 1"),
        ("nothing/infer", {}, 404, "nothing"),
        ("embedder/generate", {"text_input": "a"}, 400, "embedder"),
        ("embedder/infer", {"parameters": {"temperature": 0}}, 400, "temperature"),
        ("mock/generate", {}, 400, "text_input"),
        ("mock/generate_stream", {"text_input": "a", "top_p": 2}, 400, "top_p"),
    ],
)
def test_what_can_not_be_served_is_refused_by_name(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, names: str
) -> None:
    """The error has the protocol's shape."""
    whole = {"inputs": [TEXT]} | body if path.endswith("infer") else body
    answer = http.post(f"/v2/models/{path}", json=whole)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert names in answer.json()["error"]


@pytest.mark.parametrize(
    ("header", "names"), [("9999", LENGTH), ("-1", LENGTH), ("2", ""), ("all", LENGTH)], ids=lambda value: value or "-"
)
def test_a_wrong_length_of_the_json_is_refused(http: httpx.Client, header: str, names: str) -> None:
    answer = http.post("/v2/models/mock/infer", content=json.dumps({"inputs": [TEXT]}), headers={LENGTH: header})
    assert answer.status_code == 400
    assert names in answer.json()["error"]


def test_answers_are_as_the_document_says(http: httpx.Client) -> None:
    document = http.get("/openapi.json", timeout=60).json()
    generation = http.post("/v2/models/mock/generate", json={"text_input": "hello"}).json()
    for path, method, answer in (
        ("/v2", "get", http.get("/v2").json()),
        ("/v2/models/{name}", "get", http.get("/v2/models/mock").json()),
        ("/v2/models/{name}/infer", "post", infer(http).json()),
        ("/v2/models/{name}/generate", "post", generation),
    ):
        declared(document, path, method).validate(answer)
        assert not declared(document, path, method).is_valid({**answer, "unheard_of": 1})


def test_a_client_that_leaves_a_stream_frees_its_seat(served: Stack, http: httpx.Client) -> None:
    body = {"text_input": "hello", "max_tokens": 1500, "ignore_eos": True}
    with http.stream("POST", "/v2/models/mock/generate_stream", json=body) as stream:
        assert next(stream.iter_lines()).startswith("data: ")
    wait_until(lambda: all_free(served, POOL), "nothing is left")
