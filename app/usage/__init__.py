"""Usage of each request: a record at its end, through a stream in Redis into SQL, and the reports about it."""
