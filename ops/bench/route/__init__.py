"""`make bench NAME=route`: what routing by KV cache costs and brings."""
