"""Inference requests, and the completions and embeddings that they become."""

import json
import sys
from typing import Any

import pytest

from app.api.main import grpc_server
from app.errors import ModelNotFound, RequestError, SettingsError
from app.kserve.requests import GenerateBody, InferBody, InferRequest
from app.kserve.tensors import Tensor
from app.settings import Settings
from tests.refusals import refused


def tensor(name: str, *values: Any, datatype: str = "BYTES") -> Tensor:
    return Tensor(name, datatype, (len(values),), values)


def request(*inputs: Tensor, version: str = "", within_s: float | None = None, **parameters: Any) -> InferRequest:
    return InferRequest("m", version, "", inputs or [tensor("text_input", "hi")], parameters, within_s=within_s)


def as_openai(asked: InferRequest) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(asked.as_openai("text"))
    return body


def test_a_completion_has_20_tokens_unless_it_says_else() -> None:
    assert as_openai(request()) == {"model": "m", "prompt": "hi", "max_tokens": 20}
    assert as_openai(request(max_tokens=3, top_k=5)) == {"model": "m", "prompt": "hi", "max_tokens": 3, "top_k": 5}


def test_texts_to_embed_are_all_of_the_tensor() -> None:
    infer_request = request(tensor("text_input", "a", "b"), dimensions=8)
    assert json.loads(infer_request.as_openai("embed")) == {"model": "m", "input": ["a", "b"], "dimensions": 8}


def test_a_timeout_is_microseconds_and_else_what_is_left_of_the_calls_deadline() -> None:
    assert as_openai(request(timeout=1_500_000, within_s=9.0))["timeout"] == 1.5
    assert as_openai(request(within_s=9.0))["timeout"] == 9.0
    assert as_openai(request(within_s=0.0))["timeout"] > 0


@pytest.mark.parametrize("timeout", [0, -1, 0.5, "1", True, 86_400_000_001])
def test_another_timeout_is_refused_by_its_unit(timeout: Any) -> None:
    with refused("timeout", "microseconds"):
        request(timeout=timeout).as_openai("text")


def test_sampling_parameters_as_an_input_go_before_parameters() -> None:
    """Numbers may be texts; a stop that looks like one stays a text."""
    sampling = {"temperature": "0.5", "max_tokens": "7", "stop": "1", "logit_bias": {"3": 1}}
    infer_request = request(
        tensor("text_input", "hi"), tensor("sampling_parameters", json.dumps(sampling)), max_tokens=9
    )
    assert as_openai(infer_request) == {
        "model": "m", "prompt": "hi", "temperature": 0.5, "max_tokens": 7, "stop": "1", "logit_bias": {"3": 1},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["{", "[1]", "1", '{"n": 2}', '{"x": %s}' % ("[" * 300 + "]" * 300)])
def test_other_sampling_parameters_are_refused(text: str) -> None:
    infer_request = request(tensor("text_input", "hi"), tensor("sampling_parameters", text))
    with pytest.raises(RequestError, match=r"sampling_parameters|'n'"):
        infer_request.as_openai("text")


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (request(stream=True), "'stream'"),
        (request(prompt="x"), "'prompt'"),
        (request(tensor("image", "x")), "'image'"),
        (request(tensor("text_input", "a", "b")), "'text_input'"),
        (request(tensor("text_input", True, datatype="BOOL")), "'text_input'"),
        (InferRequest("m", "", "", [tensor("text_input", "a")], {}, ["logits"]), "'logits'"),
    ],
)
def test_what_a_completion_has_no_place_for_is_refused_by_name(asked: InferRequest, names: str) -> None:
    with pytest.raises(RequestError, match=names):
        asked.as_openai("text")


def test_a_model_has_one_version() -> None:
    assert as_openai(request(version="1"))
    with pytest.raises(ModelNotFound, match="version 1"):
        request(version="2").as_openai("text")


def test_bytes_behind_the_json_are_those_of_the_inputs() -> None:
    """No fewer and no more."""
    inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}]
    body = InferBody.model_validate({"inputs": inputs})
    assert body.request("m", "", b"\2\0\0\0hi").inputs[0].values == ["hi"]
    with pytest.raises(RequestError, match="'text_input'"):
        body.request("m", "", b"\2\0\0\0h")
    with pytest.raises(RequestError, match="1 bytes that belong to no input"):
        body.request("m", "", b"\2\0\0\0hi!")


def test_generate_knows_parameters_beside_the_text_and_in_their_object() -> None:
    body = GenerateBody.model_validate({"text_input": "hi", "top_k": 5, "stream": True, "parameters": {"seed": 1}})
    infer_request = body.request("m", "")
    assert (infer_request.parameters, infer_request.streams()) == ({"top_k": 5, "seed": 1}, True)
    with pytest.raises(RequestError, match="'streaming'"):
        GenerateBody.model_validate({"text_input": "hi", "streaming": "perhaps"}).request("m", "")


def test_grpc_and_http_have_ports_of_their_own() -> None:
    with pytest.raises(SettingsError, match=r"XYLEM_GRPC_PORT=8123: .*XYLEM_PORT"):
        grpc_server(Settings(grpc_port=8123, port=8123))


def test_a_port_for_grpc_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "app.api.kserve.grpc_server", raising=False)
    with pytest.raises(SettingsError, match=r"XYLEM_GRPC_PORT.*xylem-serve\[grpc\]"):
        grpc_server(Settings(grpc_port=0))
    assert grpc_server(Settings())
