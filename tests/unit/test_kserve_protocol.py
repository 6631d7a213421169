"""The messages of the Open Inference Protocol, against bytes written by hand from its field numbers.

A field begins with number × 8 + kind: 0 a varint, 1 eight bytes, 2 a length and so many bytes.
"""

import pytest

from app.api.kserve.messages import request_of, response_of
from app.api.kserve.protocol import MESSAGES
from app.api.kserve.standard_protocol import HEALTH_MESSAGES, REFLECTIONS
from app.errors import RequestError
from app.kserve.tensors import Tensor

REQUEST = (
    b"\x0a\x01m"  # 1: model_name
    b"\x12\x011"  # 2: model_version
    b"\x1a\x01i"  # 3: id
    b"\x22\x07" b"\x0a\x01n" b"\x12\x02\x10\x05"  # 4: parameters: 1 the key, 2 the value: 2 int64_param
    b"\x22\x0e" b"\x0a\x01t" b"\x12\x09\x21\x00\x00\x00\x00\x00\x00\xe0\x3f"  # 4 double_param: 0.5
    b"\x22\x07" b"\x0a\x01b" b"\x12\x02\x08\x01"  # 1 bool_param
    b"\x22\x08" b"\x0a\x01s" b"\x12\x03\x1a\x01x"  # 3 string_param
    b"\x2a\x1d" b"\x0a\x0atext_input" b"\x12\x05BYTES" b"\x1a\x01\x01" b"\x2a\x05\x42\x03hey"  # 5: inputs
    b"\x32\x0d" b"\x0a\x0btext_output"  # 6: outputs: 1 name
)  # fmt: skip


def test_a_request_is_read_by_the_numbers_of_the_specification() -> None:
    infer_request = request_of(MESSAGES["ModelInferRequest"].FromString(REQUEST), 3.0)
    assert (infer_request.model, infer_request.version, infer_request.id) == ("m", "1", "i")
    assert infer_request.within_s == 3.0
    assert infer_request.parameters == {"n": 5, "t": 0.5, "b": True, "s": "x"}
    assert list(infer_request.inputs) == [Tensor("text_input", "BYTES", (1,), ["hey"])]
    assert list(infer_request.outputs) == ["text_output"]


def test_raw_contents_stand_for_the_inputs_in_their_order() -> None:
    head = b"\x0a\x01m\x2a\x0b\x0a\x01a\x12\x04BOOL\x1a\x00"
    bare = b"\x2a\x0c\x0a\x01a\x12\x04BOOL\x1a\x01\x01"  # 3: shape, packed
    raw = b"\x3a\x01\x01"  # 7: raw_input_contents
    infer_request = request_of(MESSAGES["ModelInferRequest"].FromString(b"\x0a\x01m" + bare + raw), None)
    assert list(infer_request.inputs) == [Tensor("a", "BOOL", (1,), [True])]
    with pytest.raises(RequestError, match="raw_input_contents"):
        request_of(MESSAGES["ModelInferRequest"].FromString(head + raw + raw), None)


def test_a_response_is_written_by_the_numbers_of_the_specification() -> None:
    infer_request = request_of(MESSAGES["ModelInferRequest"].FromString(REQUEST), None)
    response = response_of(infer_request, [Tensor("o", "BYTES", (1,), ["hi"])])
    expected_bytes = (
        b"\x0a\x01m" b"\x12\x011" b"\x1a\x01i"  # 1 model_name, 2 model_version, 3 id
        b"\x2a\x0d" b"\x0a\x01o" b"\x12\x05BYTES" b"\x1a\x01\x01"  # 5 outputs: 1 name, 2 datatype, 3 shape
        b"\x32\x06\x02\x00\x00\x00hi"  # 6 raw_output_contents
    )  # fmt: skip
    assert response.SerializeToString() == expected_bytes
    message = MESSAGES["ModelStreamInferResponse"](error_message="e", infer_response=response)
    assert message.SerializeToString() == b"\x0a\x01e\x12" + bytes([len(expected_bytes)]) + expected_bytes


def test_health_and_metadata_have_the_numbers_of_the_specification() -> None:
    assert MESSAGES["ServerLiveResponse"](live=True).SerializeToString() == b"\x08\x01"
    outputs = [{"name": "o", "datatype": "FP32", "shape": [-1]}]
    model = MESSAGES["ModelMetadataResponse"](name="m", versions=["1"], platform="p", outputs=outputs)
    shape = b"\x1a\x0a" + b"\xff" * 9 + b"\x01"
    output = b"\x0a\x01o\x12\x04FP32" + shape
    expected_bytes = b"\x0a\x01m\x12\x011\x1a\x01p\x2a" + bytes([len(output)]) + output
    assert model.SerializeToString() == expected_bytes


def test_fields_that_are_not_declared_are_skipped() -> None:
    assert MESSAGES["ServerReadyResponse"].FromString(b"\x08\x01\xfa\x01\x03abc").ready


def test_repository_and_statistics_have_the_numbers_of_the_specification() -> None:
    index = MESSAGES["RepositoryIndexRequest"].FromString(b"\x10\x01")
    assert index.ready
    models = [{"name": "m", "version": "1", "state": "READY", "reason": "r"}]
    entry = b"\x0a\x01m\x12\x011\x1a\x05READY\x22\x01r"
    expected_bytes = b"\x0a" + bytes([len(entry)]) + entry
    assert MESSAGES["RepositoryIndexResponse"](models=models).SerializeToString() == expected_bytes
    parameter = b"\x1a\x07\x0a\x01u\x12\x02\x08\x01"  # 3 parameters: 1 the key, 2 the value: 1 bool_param
    unload = MESSAGES["RepositoryModelUnloadRequest"].FromString(b"\x12\x01m" + parameter)
    assert (unload.model_name, unload.parameters["u"].bool_param) == ("m", True)
    stats = {"success": {"count": 1, "ns": 2}, "queue": {"count": 3, "ns": 4}, "compute_infer": {"count": 5, "ns": 6}}
    model = {"name": "m", "version": "1", "last_inference": 7, "inference_count": 8, "execution_count": 9}
    inner = b"\x0a\x04\x08\x01\x10\x02\x1a\x04\x08\x03\x10\x04\x2a\x04\x08\x05\x10\x06"
    outer = b"\x0a\x01m\x12\x011\x18\x07\x20\x08\x28\x09\x32" + bytes([len(inner)]) + inner
    answer = MESSAGES["ModelStatisticsResponse"](model_stats=[{**model, "inference_stats": stats}])
    assert answer.SerializeToString() == b"\x0a" + bytes([len(outer)]) + outer


def test_health_and_reflection_have_the_numbers_of_their_specifications() -> None:
    assert HEALTH_MESSAGES["HealthCheckRequest"].FromString(b"\x0a\x01s").service == "s"
    assert HEALTH_MESSAGES["HealthCheckResponse"](status=2).SerializeToString() == b"\x08\x02"
    messages = REFLECTIONS["grpc.reflection.v1.ServerReflection"]
    request = messages["ServerReflectionRequest"].FromString(b"\x0a\x01h\x22\x01s")
    assert (request.host, request.file_containing_symbol) == ("h", "s")
    answer = messages["ServerReflectionResponse"](
        valid_host="h", original_request=request, list_services_response={"service": [{"name": "s"}]}
    )
    original = b"\x12\x06\x0a\x01h\x22\x01s"
    assert answer.SerializeToString() == b"\x0a\x01h" + original + b"\x32\x05\x0a\x03\x0a\x01s"
    failure = messages["ServerReflectionResponse"](error_response={"error_code": 5, "error_message": "m"})
    assert failure.SerializeToString() == b"\x3a\x05\x08\x05\x12\x01m"
    file = messages["ServerReflectionResponse"](file_descriptor_response={"file_descriptor_proto": [b"f"]})
    assert file.SerializeToString() == b"\x22\x03\x0a\x01f"
