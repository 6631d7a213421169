"""Answers that outlive their connection: written to Redis as they come, and read from there by any API replica."""
