"""Answers of the Open Inference Protocol over HTTP."""

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from app.kserve.tensors import Datatype
from app.schemas.answers import absent_means


class InferenceRefusal(TypedDict, closed=True):
    error: str


class Server(TypedDict, closed=True):
    name: Literal["xylem"]
    version: str
    extensions: list[str]


class TensorOfModel(TypedDict, closed=True):
    name: str
    datatype: Datatype
    shape: list[int]


class Model(TypedDict, closed=True):
    name: str
    versions: list[str]
    platform: Literal["xylem"]
    inputs: list[TensorOfModel]
    outputs: list[TensorOfModel]


class Output(TypedDict, closed=True):
    name: str
    datatype: Literal["BYTES", "FP32"]
    shape: Sequence[int]
    parameters: NotRequired[dict[str, int]]  # in place of `data`, if it was asked for as bytes
    data: NotRequired[list[str] | list[float]]


class Inferred(TypedDict, closed=True):
    model_name: str
    model_version: str
    id: NotRequired[Annotated[str, absent_means("")]]
    outputs: list[Output]


class GeneratedText(TypedDict, closed=True):
    id: NotRequired[Annotated[str, absent_means("")]]
    model_name: str
    model_version: str
    text_output: str
    finish_reason: NotRequired[str]


class DurationStatistic(TypedDict, closed=True):
    count: int
    ns: int


class InferStatistics(TypedDict, closed=True):
    success: DurationStatistic
    fail: DurationStatistic
    queue: DurationStatistic
    compute_input: DurationStatistic
    compute_infer: DurationStatistic
    compute_output: DurationStatistic
    cache_hit: DurationStatistic
    cache_miss: DurationStatistic


class ModelStatistics(TypedDict, closed=True):
    name: str
    version: str
    last_inference: int  # milliseconds since the epoch
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: list[DurationStatistic]  # none: engines batch on their own


class Statistics(TypedDict, closed=True):
    model_stats: list[ModelStatistics]


class IndexEntry(TypedDict, closed=True):
    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str
