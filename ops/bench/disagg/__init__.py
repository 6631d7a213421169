"""`make bench NAME=disagg`: the cost and the benefit of separate prefill workers."""
