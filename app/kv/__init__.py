"""Which prefix blocks lie in which worker's KV cache."""
