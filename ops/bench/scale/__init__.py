"""The cost of a thousand workers and a hundred API replicas, with simulated workers: leases and indices, no engines."""
