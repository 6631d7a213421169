"""Answers that outlive their connection: written down in Redis as they come, and read from there by any API replica."""
