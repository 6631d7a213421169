"""vLLM-Omni's stages that paint. `app/engines/omni/` has those that write, and what both know of stages."""
