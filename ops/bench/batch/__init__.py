"""`make bench NAME=batch`: how fast batches run alone, how they slow online requests, and the cost of a large file."""
