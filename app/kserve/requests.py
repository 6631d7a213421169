"""Inference requests, and the requests of OpenAI's endpoints that they become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from app import json_bytes
from app.errors import ModelNotFound, RequestError
from app.kserve.answer_types import Model, TensorOfModel
from app.kserve.kinds import (
    INPUTS,
    OUTPUTS,
    SAMPLING,
    STREAMING,
    Kind,
    Signature,
    kind_of,
    refused_of,
    signature_of,
)
from app.kserve.tensors import PICTURE, Tensor, checked, flat, from_raw, picture_url
from app.messages.kinds import Task
from app.schemas.body import MOST, Body
from app.schemas.form_values import form_value

VERSION = "1"  # of every model
EMPTY_FINAL = "triton_enable_empty_final_response"
BINARY = "binary_data_output"
_OF_PROTOCOL = {EMPTY_FINAL, BINARY}
_MAX_TOKENS = 20  # if none is given, as the generate extension has it
_MOST_US = 86_400_000_000  # a day


class InputBody(Body):
    name: str
    datatype: str
    shape: Annotated[list[int], Field(max_length=8)]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class OutputBody(Body):
    name: str
    parameters: dict[str, Any] | None = None


class InferBody(Body):
    id: str = ""
    parameters: dict[str, Any] | None = None
    inputs: Annotated[list[InputBody], Field(max_length=MOST)]
    outputs: Annotated[list[OutputBody], Field(max_length=MOST)] | None = None

    def request(self, model: str, version: str, binary: bytes = b"") -> "InferRequest":
        """`binary`: the bytes of the inputs that have `binary_data_size`. Raises: RequestError."""
        inputs, at = [], 0
        for one in self.inputs:
            size = (one.parameters or {}).get("binary_data_size")
            if isinstance(size, int) and size >= 0 and one.data is None:
                if at + size > len(binary):
                    raise RequestError(f"Input '{one.name}': the body ends before its bytes do.", param=one.name)
                values = from_raw(one.name, one.datatype, binary[at : at + size])
                at += size
            else:
                values = flat(one.data or ())
            inputs.append(checked(one.name, one.datatype, one.shape, values))
        if at != len(binary):
            raise RequestError(f"The body has {len(binary) - at} bytes that belong to no input.")
        outputs = [one.name for one in self.outputs or ()]
        return InferRequest(model, version, self.id, inputs=inputs, parameters=self.parameters or {}, outputs=outputs)

    def binary_outputs(self, name: str) -> bool:
        """Whether the client wants this output as bytes behind the JSON."""
        for one in self.outputs or ():
            if one.name == name and one.parameters and "binary_data" in one.parameters:
                return one.parameters["binary_data"] is True
        return (self.parameters or {}).get(BINARY) is True


class GenerateBody(Body):
    """The body of the generate extension: parameters stand in `parameters`, or beside the text."""

    model_config = ConfigDict(extra="allow")

    id: str = ""
    text_input: str
    parameters: dict[str, Any] | None = None

    def request(self, model: str, version: str) -> "InferRequest":
        """Raises: RequestError."""
        beside, inputs = dict(self.model_extra or {}), [Tensor("text_input", "BYTES", (1,), [self.text_input])]
        for name in STREAMING:
            if name in beside:
                if type(flag := beside.pop(name)) is not bool:
                    raise RequestError(f"'{name}' has to be true or false.", param=name)
                inputs.append(Tensor(name, "BOOL", (1,), [flag]))
        return InferRequest(model, version, self.id, inputs, beside | (self.parameters or {}))


@dataclass(frozen=True)
class InferRequest:
    model: str
    version: str  # "": any
    id: str
    inputs: Sequence[Tensor]
    parameters: Mapping[str, Any]
    outputs: Sequence[str] = field(default=())  # the wanted ones; empty: all
    within_s: float | None = None  # the connection's deadline, for want of a parameter `timeout`

    def streams(self) -> bool:
        """Whether the client wants the answer in pieces. Raises: RequestError."""
        return any(self._one(name, "BOOL") for name in STREAMING)

    def kind(self, task: Task) -> Kind:
        """The request's, to a model of that task. Raises: RequestError."""
        return kind_of(task, {one.name for one in self.inputs})

    def as_openai(self, kind: Kind) -> bytes:
        """The body of the kind's endpoint. Raises: RequestError, ModelNotFound."""
        check_version(self.model, self.version)
        names = [name for name, _datatype, _shape in INPUTS[kind]]
        for one in self.inputs:
            if one.name not in (*names, *(STREAMING if "streaming" in names else ())):
                raise RequestError(f"There is no input '{one.name[:64]}': {', '.join(sorted(names))}.", param="inputs")
        has = [name for name, _datatype, _shape in OUTPUTS[kind]]
        for output in self.outputs:
            if output not in has:
                raise RequestError(f"There is no output '{output[:64]}': {', '.join(has)}.", param="outputs")
        body = {**self._parameters(kind), "model": self.model, **self._input(kind)}
        if kind in ("text", "chat"):
            body.setdefault("max_tokens", _MAX_TOKENS)
        try:
            return json_bytes.dumps(body)
        except TypeError:  # of the input alone: the body was read by pydantic, which takes fewer levels
            raise RequestError(f"Input '{SAMPLING}' is nested too deep.", param=SAMPLING) from None

    def _input(self, kind: Kind) -> dict[str, Any]:
        """The fields of the body that the tensors are. Raises: RequestError."""
        if kind in ("embed", "classify"):
            return {"input": list(self._tensor("text_input", "BYTES").values)}
        if kind == "score":
            return {name: list(self._tensor(name, "BYTES").values) for name in ("text_1", "text_2")}
        text = self._one("text_input", "BYTES", needed=True)
        if kind != "chat":
            return {"prompt": text}
        urls = [picture_url(value) for value in self._tensor(PICTURE, "BYTES").values]
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}

    def _parameters(self, kind: Kind) -> dict[str, Any]:
        """The parameters of the body, with its timeout in seconds. Raises: RequestError."""
        all_parameters = {**self.parameters, **self._sampling()}
        for name in sorted(refused_of(kind) & all_parameters.keys()):
            raise RequestError(f"The parameter '{name}' can't be used with this protocol.", param=name)
        parameters = {name: value for name, value in all_parameters.items() if name not in _OF_PROTOCOL}
        if "timeout" in parameters:
            if type(parameters["timeout"]) is not int or not 0 < parameters["timeout"] <= _MOST_US:
                raise RequestError(f"'timeout' has to be microseconds, from 1 to {_MOST_US}.", param="timeout")
            parameters["timeout"] /= 1e6
        elif self.within_s is not None:
            parameters["timeout"] = max(self.within_s, 0.001)
        return parameters

    def _sampling(self) -> dict[str, Any]:
        """Parameters that an input has as a JSON object; numbers may be texts, as some clients write them."""
        text = self._one(SAMPLING, "BYTES")
        try:
            options = json_bytes.loads(text or "{}")
        except ValueError as exc:
            raise RequestError(f"Input '{SAMPLING}' is not JSON: {exc}.", param=SAMPLING) from exc
        if not isinstance(options, dict):
            raise RequestError(f"Input '{SAMPLING}' has to be a JSON object.", param=SAMPLING)
        return {name: form_value(name, one) if isinstance(one, str) else one for name, one in options.items()}

    def _tensor(self, name: str, datatype: str) -> Tensor:
        tensors = [one for one in self.inputs if one.name == name]
        if len(tensors) != 1 or tensors[0].datatype != datatype:
            raise RequestError(f"There has to be one input '{name}' with the datatype {datatype}.", param="inputs")
        return tensors[0]

    def _one(self, name: str, datatype: str, *, needed: bool = False) -> Any:
        """The only value of an input; None: it isn't there."""
        if not needed and all(one.name != name for one in self.inputs):
            return None
        values = self._tensor(name, datatype).values
        if len(values) != 1:
            raise RequestError(f"Input '{name}' has {len(values)} values, and has to have 1.", param=name)
        return values[0]


def check_version(model: str, version: str) -> None:
    """Raises: ModelNotFound."""
    if version not in ("", VERSION):
        raise ModelNotFound(f"The model '{model[:100]}' has only the version {VERSION} here.", param="version")


def metadata(name: str, task: Task) -> Model:
    """A model's. A task that this protocol doesn't serve has no inputs and outputs."""

    def shown(signature: Signature) -> list[TensorOfModel]:
        return [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in signature]

    return {
        "name": name,
        "versions": [VERSION],
        "platform": "xylem",
        "inputs": shown(signature_of(task, INPUTS)),
        "outputs": shown(signature_of(task, OUTPUTS)),
    }
