"""Messages of the gRPC service, from and to requests and tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from app.api.kserve.protocol import MESSAGES
from app.api.kserve.wire_bounds import check_fields
from app.errors import BodyTooLarge, RequestError
from app.kserve.requests import VERSION, InferRequest
from app.kserve.tensors import Tensor, checked, from_raw

_Infer = MESSAGES["ModelInferResponse"]
_MOST_SHORT = 2**16  # bytes of a message without prompts
_CONTENTS = {"BYTES": "bytes_contents", "BOOL": "bool_contents"}


def short_message(kind: Any, raw: bytes) -> Any:
    """A message of the class `kind`. Raises: BodyTooLarge, RequestError."""
    if len(raw) > _MOST_SHORT:
        raise BodyTooLarge(f"A message {kind.DESCRIPTOR.name} is over the limit of {_MOST_SHORT} bytes.")
    return _decoded(kind, raw)


def infer_message(raw: bytes) -> Any:
    """Raises: RequestError, also before too many values are built."""
    check_fields(raw)
    return _decoded(MESSAGES["ModelInferRequest"], raw)


def _decoded(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as exc:
        raise RequestError(f"The message is no {kind.DESCRIPTOR.name}.") from exc


def request_of(message: Any, within_s: float | None) -> InferRequest:
    """`within_s`: until the deadline of the call. Raises: RequestError."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(f"'raw_input_contents' has {len(raw)} entries for {len(message.inputs)} inputs.")
    inputs = []
    for number, one in enumerate(message.inputs):
        if raw:
            values: Any = from_raw(one.name, one.datatype, raw[number])
        else:
            values = getattr(one.contents, _CONTENTS.get(one.datatype, "bytes_contents"))
        inputs.append(checked(one.name, one.datatype, one.shape, values))
    return InferRequest(
        message.model_name,
        message.model_version,
        message.id,
        inputs=inputs,
        parameters=parameters_of(message.parameters),
        outputs=[one.name for one in message.outputs],
        within_s=within_s,
    )


def parameters_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that have a value."""
    kinds = {name: one.WhichOneof("parameter_choice") for name, one in fields.items()}
    return {name: getattr(fields[name], kind) for name, kind in kinds.items() if kind}


def response_of(request: InferRequest, outputs: Sequence[Tensor]) -> Any:
    response = _Infer(model_name=request.model, model_version=VERSION, id=request.id)
    for one in outputs:
        response.outputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        response.raw_output_contents.append(one.raw())
    return response
