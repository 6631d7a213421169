"""What each request used: a record at its end, through a stream in Redis into SQL, and the reports about it."""
