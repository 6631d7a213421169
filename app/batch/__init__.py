"""Files and batches: their records, their storage, and which batch is next. No HTTP, no engine."""
