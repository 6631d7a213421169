"""Tests of engines that need a CUDA device: collected where the engine is installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("tensorrt_llm") else ["test_trtllm.py"]
