"""Tells which worker's KV cache has which prefix blocks, and moves KV between workers."""
