"""`make bench NAME=tiers`: KV in host memory and in a store."""
