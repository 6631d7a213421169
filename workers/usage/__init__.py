"""The usage writer: takes records from their stream in Redis, and writes them to SQL."""
