"""The batch worker: without an engine; it dispatches the lines of batches to workers that have one."""
