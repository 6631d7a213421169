"""Scores, classes and pictures as tensors of the Open Inference Protocol: real processes and mock engines."""

import base64
import json
import shutil
import struct
from array import array
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.kserve.protocol import MESSAGES
from tests.acceptance.test_embeddings import MODEL
from tests.kserve import grpc_client
from tests.pictures import asked, png
from tests.serving import served_by
from tests.stack import Stack, free_port, mock_pool
from tests.vlm import random_vlm


def pools(path: Path) -> dict[str, Any]:
    """Pools of a model that sees, one that embeds, one that tells classes by name, and one that paints."""
    folder = path / "classes"
    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text()) | {"id2label": {"0": "bad", "1": "good"}}
    (folder / "config.json").write_text(json.dumps(config))
    return {
        "sees-pool": mock_pool(model="sees") | {"path": str(random_vlm("idefics3", weights=False))},
        "embed-pool": mock_pool(model="embedder") | {"task": "embed"},
        "classes-pool": mock_pool(model="classes") | {"task": "classify", "path": str(folder)},
        "paint-pool": {"model": "painter", "engine": "mock", "task": "image"},
    }


served = served_by(pools, XYLEM_GRPC_PORT=str(free_port()))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def http(served: Stack) -> Any:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


def texts(name: str, *values: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(values)], "data": [*values]}


def infer(http: httpx.Client, model: str, *inputs: Any, status: int = 200, **parameters: Any) -> Any:
    body = {"inputs": [*inputs], "parameters": parameters}
    answer = http.post(f"/v2/models/{model}/infer", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"] if status != 200 else {one["name"]: one for one in answer.json()["outputs"]}


def unpacked(raw: bytes) -> list[bytes]:
    values = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        values.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return values


@pytest.mark.parametrize("first", [["the cat"], ["the cat", "the dog"]])
def test_pairs_of_texts_are_scored_as_by_the_score_api(http: httpx.Client, first: list[str]) -> None:
    second = ["a cat sat", "a dog ran"]
    (out,) = infer(http, "embedder", texts("text_1", *first), texts("text_2", *second)).values()
    body = {"model": "embedder", "text_1": first, "text_2": second}
    as_openai = [one["score"] for one in http.post("/v1/score", json=body).json()["data"]]
    assert (out["name"], out["datatype"], out["shape"]) == ("scores", "FP32", [2])
    assert out["data"] == pytest.approx(as_openai, abs=1e-6)
    assert out["data"][0] != out["data"][1]


def test_classes_of_texts_have_their_names_and_probabilities(http: httpx.Client) -> None:
    outputs = infer(http, "classes", texts("text_input", "one text", "another"))
    data = http.post("/v1/classify", json={"model": "classes", "input": ["one text", "another"]}).json()["data"]
    assert outputs["labels"]["data"] == [one["label"] for one in data]
    assert {*outputs["labels"]["data"]} <= {"bad", "good"}
    assert outputs["probs"]["shape"] == [2, len(data[0]["probs"])]
    assert outputs["probs"]["data"] == pytest.approx([number for one in data for number in one["probs"]])


def test_pictures_are_painted_as_base64_in_json_and_as_files_behind_it(http: httpx.Client) -> None:
    sampling = texts("sampling_parameters", json.dumps({"n": 2, "seed": 7, "size": "64x64"}))
    (out,) = infer(http, "painter", texts("text_input", "a red square"), sampling).values()
    body = {"model": "painter", "prompt": "a red square", "n": 2, "seed": 7, "size": "64x64"}
    as_openai = [one["b64_json"] for one in http.post("/v1/images/generations", json=body).json()["data"]]
    assert (out["name"], out["shape"], out["data"]) == ("image", [2], as_openai)
    binary = {"inputs": [texts("text_input", "a red square"), sampling], "parameters": {"binary_data_output": True}}
    answer = http.post("/v2/models/painter/infer", json=binary)
    raw = answer.content[int(answer.headers["Inference-Header-Content-Length"]) :]
    assert unpacked(raw) == [base64.b64decode(one) for one in as_openai]


def seen(http: httpx.Client, *pictures: bytes) -> str:
    """The answer of the chat API to pictures before a text."""
    (message,) = asked(*pictures)
    message = {**message, "content": [*message["content"][1:], message["content"][0]]}
    body = {"model": "sees", "messages": [message], **GREEDY}
    return str(http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])


def test_pictures_are_seen_as_in_a_chat(http: httpx.Client) -> None:
    """JSON has them as base64, or by their URL; behind it they are files."""
    text, files = texts("text_input", "What is this?"), [png(1), png(2)]
    files_64 = [base64.b64encode(file).decode() for file in files]
    as_openai = seen(http, *files)
    assert as_openai != seen(http, png(3), png(4))
    for values in (files_64, [f"data:image/png;base64,{one}" for one in files_64]):
        outputs = infer(http, "sees", text, texts("image", *values), **GREEDY)
        assert outputs["text_output"]["data"] == [as_openai]
    raw = b"".join(struct.pack("<I", len(file)) + file for file in files)
    tensor = {"name": "image", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [text, tensor], "parameters": GREEDY}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = http.post("/v2/models/sees/infer", content=head + raw, headers=headers).json()
    assert answer["outputs"][0]["data"] == [as_openai]


async def test_pictures_and_scores_over_grpc(served: Stack, http: httpx.Client) -> None:
    request = MESSAGES["ModelInferRequest"](model_name="sees")
    for name, values in (("text_input", [b"What is this?"]), ("image", [png(1), png(2)])):
        tensor = request.inputs.add(name=name, datatype="BYTES", shape=[len(values)])
        tensor.contents.bytes_contents.extend(values)
    request.parameters["max_tokens"].int64_param = 8
    request.parameters["temperature"].double_param = 0.0
    request.parameters["ignore_eos"].bool_param = True
    pairs = MESSAGES["ModelInferRequest"](model_name="embedder")
    for name in ("text_1", "text_2"):
        pairs.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"the cat")
    paint = MESSAGES["ModelInferRequest"](model_name="painter")
    paint.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a square")
    async with grpc_client(served) as client:
        answer = await client.call("ModelInfer", request)
        assert unpacked(answer.raw_output_contents[0]) == [seen(http, png(1), png(2)).encode()]
        scores = await client.call("ModelInfer", pairs)
        assert array("f", scores.raw_output_contents[0]).tolist() == pytest.approx([1.0])
        (picture,) = unpacked((await client.call("ModelInfer", paint)).raw_output_contents[0])
        assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("model", "inputs", "parameters", "names"),
    [
        ("embedder", [texts("text_1", "a")], {}, "text_2"),
        ("embedder", [texts("text_1", "a"), texts("text_2", "a"), texts("text_input", "a")], {}, "text_input"),
        ("classes", [texts("text_1", "a"), texts("text_2", "a")], {}, "text_1"),
        ("painter", [texts("text_input", "a")], {"response_format": "url"}, "response_format"),
        ("painter", [texts("text_input", "a", "b")], {}, "text_input"),
        ("sees", [texts("text_input", "a"), texts("image", "!!")], {}, "image"),
        ("sees", [texts("text_input", "a"), texts("image", "aaaa")], {"tools": []}, "tools"),
        ("sees", [texts("image", "aaaa")], {}, "text_input"),
    ],
)
def test_what_does_not_fit_a_kind_is_refused_by_name(
    http: httpx.Client, model: str, inputs: list[Any], parameters: dict[str, Any], names: str
) -> None:
    assert names in infer(http, model, *inputs, status=400, **parameters)


def test_metadata_have_the_tensors_of_all_kinds(http: httpx.Client) -> None:
    def names(model: str) -> tuple[list[str], list[str]]:
        metadata = http.get(f"/v2/models/{model}").json()
        return [one["name"] for one in metadata["inputs"]], [one["name"] for one in metadata["outputs"]]

    assert names("embedder") == (["text_input", "text_1", "text_2"], ["embeddings", "scores"])
    assert names("classes") == (["text_input"], ["labels", "probs"])
    assert names("painter") == (["text_input", "sampling_parameters"], ["image"])
    assert "image" in names("sees")[0]
