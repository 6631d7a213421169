"""The Open Inference Protocol over HTTP, and over gRPC at a port of its own."""
