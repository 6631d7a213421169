"""Messages of the gRPC service, from and to requests and tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.api.kserve.protocol import MESSAGES
from app.errors import RequestError
from app.kserve.requests import VERSION, InferRequest
from app.kserve.tensors import Tensor, checked, from_raw

_Infer = MESSAGES["ModelInferResponse"]
_CONTENTS = {"BYTES": "bytes_contents", "BOOL": "bool_contents"}


def request_of(message: Any, within_s: float | None) -> InferRequest:
    """`within_s`: until the deadline of the call. Raises: RequestError."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(f"'raw_input_contents' has {len(raw)} entries for {len(message.inputs)} inputs.")
    inputs = []
    for number, one in enumerate(message.inputs):
        if raw:
            values = from_raw(one.name, one.datatype, raw[number])
        else:
            values = list(getattr(one.contents, _CONTENTS.get(one.datatype, "bytes_contents")))
        inputs.append(checked(one.name, one.datatype, one.shape, values))
    return InferRequest(
        message.model_name,
        message.model_version,
        message.id,
        inputs,
        parameters_of(message.parameters),
        [one.name for one in message.outputs],
        within_s,
    )


def parameters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have a value."""
    chosen = {name: one.WhichOneof("parameter_choice") for name, one in given.items()}
    return {name: getattr(given[name], kind) for name, kind in chosen.items() if kind}


def response_of(request: InferRequest, outputs: Sequence[Tensor]) -> Any:
    made = _Infer(model_name=request.model, model_version=VERSION, id=request.id)
    for one in outputs:
        made.outputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        made.raw_output_contents.append(one.raw())
    return made
