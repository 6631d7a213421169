"""vLLM, in this process and its child processes, on the device that it finds."""

from app.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
