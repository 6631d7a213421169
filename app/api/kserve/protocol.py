"""The messages of the service `inference.GRPCInferenceService`, with the names and numbers of the specification."""

from app.api.kserve.descriptors import declared

SERVICE = "inference.GRPCInferenceService"

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
    "RepositoryIndexRequest": "1 string repository_name, 2 bool ready",
    "RepositoryIndexResponse": "1 RepositoryIndexResponse.ModelIndex* models",
    "RepositoryIndexResponse.ModelIndex": "1 string name, 2 string version, 3 string state, 4 string reason",
    "ModelRepositoryParameter": ("1 bool| bool_param, 2 int64| int64_param, 3 string| string_param"),
    "RepositoryModelLoadRequest": (
        "1 string repository_name, 2 string model_name, 3 {ModelRepositoryParameter} parameters"
    ),
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": (
        "1 string repository_name, 2 string model_name, 3 {ModelRepositoryParameter} parameters"
    ),
    "RepositoryModelUnloadResponse": "",
    "StatisticDuration": "1 uint64 count, 2 uint64 ns",
    "InferStatistics": (
        "1 StatisticDuration success, 2 StatisticDuration fail, 3 StatisticDuration queue, "
        "4 StatisticDuration compute_input, 5 StatisticDuration compute_infer, 6 StatisticDuration compute_output"
    ),
    "ModelStatistics": (
        "1 string name, 2 string version, 3 uint64 last_inference, 4 uint64 inference_count, "
        "5 uint64 execution_count, 6 InferStatistics inference_stats"
    ),
    "ModelStatisticsRequest": "1 string name, 2 string version",
    "ModelStatisticsResponse": "1 ModelStatistics* model_stats",
}
_METHODS = (
    "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer RepositoryIndex RepositoryModelLoad "
    "RepositoryModelUnload ModelStatistics"
).split()
MESSAGES = declared(
    "xylem_inference.proto",
    "inference",
    _MESSAGES,
    {
        "GRPCInferenceService": ", ".join(
            (
                *(f"{name} {name}Request {name}Response" for name in _METHODS),
                "ModelStreamInfer ModelInferRequest* ModelStreamInferResponse*",
            )
        )
    },
)
