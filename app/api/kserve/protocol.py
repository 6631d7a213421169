"""The messages of the gRPC service `inference.GRPCInferenceService`, with the names and numbers of the specification.

They stand in a descriptor pool of their own, since a client library in the same process registers the same names. Only
messages and fields that are read or written here are declared; others are skipped, as protobuf does with unknown ones.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE, SERVICE = "inference", "inference.GRPCInferenceService"

# Message → its fields: `number type name`. `*`: repeated; `{T}`: a map from texts to T. Messages begin with a
# capital, and are written in full; `|`: the field is one of several.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "1 bool live",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "1 bool ready",
    "ModelReadyRequest": "1 string name, 2 string version",
    "ModelReadyResponse": "1 bool ready",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "1 string name, 2 string version, 3 string* extensions",
    "ModelMetadataRequest": "1 string name, 2 string version",
    "ModelMetadataResponse": (
        "1 string name, 2 string* versions, 3 string platform, 4 ModelMetadataResponse.TensorMetadata* inputs, "
        "5 ModelMetadataResponse.TensorMetadata* outputs"
    ),
    "ModelMetadataResponse.TensorMetadata": "1 string name, 2 string datatype, 3 int64* shape",
    "InferParameter": (
        "1 bool| bool_param, 2 int64| int64_param, 3 string| string_param, 4 double| double_param, "
        "5 uint64| uint64_param"
    ),
    "InferTensorContents": "1 bool* bool_contents, 6 float* fp32_contents, 8 bytes* bytes_contents",
    "ModelInferRequest": (
        "1 string model_name, 2 string model_version, 3 string id, 4 {InferParameter} parameters, "
        "5 ModelInferRequest.InferInputTensor* inputs, 6 ModelInferRequest.InferRequestedOutputTensor* outputs, "
        "7 bytes* raw_input_contents"
    ),
    "ModelInferRequest.InferInputTensor": (
        "1 string name, 2 string datatype, 3 int64* shape, 4 {InferParameter} parameters, "
        "5 InferTensorContents contents"
    ),
    "ModelInferRequest.InferRequestedOutputTensor": "1 string name, 2 {InferParameter} parameters",
    "ModelInferResponse": (
        "1 string model_name, 2 string model_version, 3 string id, 4 {InferParameter} parameters, "
        "5 ModelInferResponse.InferOutputTensor* outputs, 6 bytes* raw_output_contents"
    ),
    "ModelInferResponse.InferOutputTensor": (
        "1 string name, 2 string datatype, 3 int64* shape, 4 {InferParameter} parameters, "
        "5 InferTensorContents contents"
    ),
    "ModelStreamInferResponse": "1 string error_message, 2 ModelInferResponse infer_response",
}
_Field = descriptor_pb2.FieldDescriptorProto


def _declare(full: str, message: Any, fields: str) -> None:
    """Adds the fields to the descriptor of the message `full`."""
    for number, kind, name in (field.split() for field in fields.split(", ") if field):
        field = message.field.add(name=name, number=int(number))
        plain, is_map = kind.strip("*|{}"), kind[0] == "{"
        field.label = _Field.LABEL_REPEATED if is_map or kind[-1] == "*" else _Field.LABEL_OPTIONAL
        if is_map:
            entry = message.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            _declare(entry.name, entry, f"1 string key, 2 {plain} value")
            plain = f"{full}.{entry.name}"
        if plain[0].isupper():
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{plain}"
        else:
            field.type = _Field.Type.Value(f"TYPE_{plain.upper()}")
        if kind[-1] == "|":
            if not message.oneof_decl:
                message.oneof_decl.add(name="parameter_choice")
            field.oneof_index = 0


def _built() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="xylem_inference.proto", package=PACKAGE, syntax="proto3")
    descriptors: dict[str, Any] = {}
    for full, fields in _MESSAGES.items():
        outer, _, name = full.rpartition(".")
        descriptors[full] = (descriptors[outer].nested_type if outer else file.message_type).add(name=name)
        _declare(full, descriptors[full], fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {full: message_factory.GetMessageClass(find(f"{PACKAGE}.{full}")) for full in _MESSAGES}


MESSAGES = _built()
