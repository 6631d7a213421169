"""TensorRT-LLM, in this process and the ones it starts. It never ran on the real engine: ops/decisions/0033."""
