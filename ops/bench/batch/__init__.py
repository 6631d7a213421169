"""`make bench NAME=batch`: how fast batches run alone, what they cost those online, and what a large file costs."""
