"""vLLM-Omni, whose models have stages within one engine: those that write. Those that paint: `app/painters/omni/`."""
