"""Which worker gets a request: pure decisions, without I/O. README.md has the formulas."""
