"""TensorRT-LLM's VisualGen: pictures and videos, on NVIDIA GPUs. It is held to its contract by a double."""
