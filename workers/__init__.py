"""What a worker process is besides its tasks: loading the engine, its lease, draining."""
