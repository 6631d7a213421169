"""Files and batches: what they are, where they lie, and which of them is next. No HTTP, no engine."""
