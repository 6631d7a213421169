"""Answers of the Open Inference Protocol, for the OpenAPI document only, as `app/api/http/answer_schemas.py`."""

from typing import Any, Literal

from app.api.http.answer_schemas import Shape, answered


class InferenceRefusal(Shape):
    error: str


class Server(Shape):
    name: Literal["xylem"]
    version: str
    extensions: list[str]


class TensorOfModel(Shape):
    name: str
    datatype: Literal["BYTES", "BOOL", "FP32"]
    shape: list[int]


class Model(Shape):
    name: str
    versions: list[str]
    platform: Literal["xylem"]
    inputs: list[TensorOfModel]
    outputs: list[TensorOfModel]


class Output(Shape):
    name: str
    datatype: Literal["BYTES", "FP32"]
    shape: list[int]
    parameters: dict[str, int] | None = None  # in place of `data`, if it was asked for as bytes
    data: list[str] | list[float] | None = None


class Inferred(Shape):
    model_name: str
    model_version: str
    id: str = ""
    outputs: list[Output]


class Generated(Shape):
    id: str = ""
    model_name: str
    model_version: str
    text_output: str
    finish_reason: str | None = None


Responses = dict[int | str, dict[str, Any]]
REFUSED: Responses = {"default": {"model": InferenceRefusal, "description": "Refused, or failed"}}
NOT_READY: Responses = {503: {"description": "Not ready"}}
INFERRED: Responses = {200: {"model": Inferred}}
GENERATED: Responses = {200: {"model": Generated}}
STREAMED = answered(Generated, Generated, InferenceRefusal)
