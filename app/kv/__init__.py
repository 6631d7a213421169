"""Which worker's KV cache has which prefix blocks, and moving KV between workers."""
