"""`make bench NAME=route`: the cost and the benefit of routing by KV cache."""
