"""`make walk`: the functions of ours that one request passes, from its first byte to the queue."""
