"""`xylem batch run`: a table in, the same table with the answers out, by as many batches as it takes."""
