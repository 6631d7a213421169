"""Worker processes, apart from their tasks: loading the engine, lease, draining."""
