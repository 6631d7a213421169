"""vLLM, in this process and the ones it starts, on whatever device it finds."""

from app.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
