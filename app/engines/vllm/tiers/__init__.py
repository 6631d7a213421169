"""KV in tiers behind vLLM's own cache: host memory, and a store that is a folder or a bucket."""
