"""What a thousand workers and a hundred API replicas cost, with simulated workers: leases and indices, no engines."""
