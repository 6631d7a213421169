"""A batch worker: it has no engine, and asks those that have one for the lines of batches."""
