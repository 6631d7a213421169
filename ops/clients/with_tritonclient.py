"""tritonclient: the Open Inference Protocol over HTTP and gRPC; the answer in pieces over gRPC."""

import os
from queue import Queue

import numpy as np
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

LIMITS = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}


def tensor(made, name, datatype, *values):
    one = made.InferInput(name, [len(values)], datatype)
    one.set_data_from_numpy(np.array(values, dtype=object if datatype == "BYTES" else bool))
    return one


answers = []
for made, address in ((http, os.environ["KSERVE_HTTP"]), (grpc, os.environ["KSERVE_GRPC"])):
    with made.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("mock")
        assert not client.is_model_ready("nothing")
        print(client.get_server_metadata(), client.get_model_metadata("mock"))
        text = tensor(made, "text_input", "BYTES", b"hello")
        result = client.infer("mock", [text], request_id="1", parameters=LIMITS, timeout=30_000_000)
        answers.append(result.as_numpy("text_output")[0].decode())
        assert result.as_numpy("finish_reason")[0] == b"length"
        rows = client.infer("embedder", [tensor(made, "text_input", "BYTES", b"one", b"two")]).as_numpy("embeddings")
        print(answers[-1], rows.shape, rows.dtype)
        assert (rows.shape, rows.dtype) == ((2, 384), np.float32)
        assert np.allclose(np.linalg.norm(rows, axis=1), 1)
        refusal = ""
        try:
            client.infer("mock", [text], parameters={"temperature": 9})
        except InferenceServerException as exc:
            refusal = str(exc)
        assert "temperature" in refusal, refusal
        index = client.get_model_repository_index()
        names = [one["name"] for one in index] if made is http else [one.name for one in index.models]
        assert names == ["embedder", "mock"], index
        client.unload_model("embedder")
        assert not client.is_model_ready("embedder")
        client.load_model("embedder")
        assert client.is_model_ready("embedder")
        statistics = client.get_inference_statistics("mock")
        (one,) = statistics["model_stats"] if made is http else statistics.model_stats
        assert int(one["inference_count"] if made is http else one.inference_count) >= 1, statistics
assert answers[0] == answers[1]

told = Queue()
with grpc.InferenceServerClient(os.environ["KSERVE_GRPC"]) as client:
    client.start_stream(lambda result, error: told.put((result, error)))
    inputs = [tensor(grpc, "text_input", "BYTES", b"hello"), tensor(grpc, "streaming", "BOOL", True)]
    client.async_stream_infer("mock", inputs, request_id="2", parameters=LIMITS, enable_empty_final_response=True)
    pieces = []
    while True:
        result, error = told.get(timeout=60)
        assert error is None, error
        response = result.get_response()
        assert response.id == "2"
        if response.parameters["triton_final_response"].bool_param:
            break
        pieces.append(result.as_numpy("text_output")[0].decode())
    client.stop_stream()
print(pieces)
assert len(pieces) > 1
assert "".join(pieces) == answers[0]
