"""The Open Inference Protocol, version 2: tensors that become completions and embeddings; no HTTP, no gRPC."""
