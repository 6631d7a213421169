"""Chooses the worker that gets a request: pure decisions, without I/O. README.md has the formulas."""
