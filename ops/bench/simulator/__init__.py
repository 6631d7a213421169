"""The simulator of routing: replays a public trace against workers that are computed, and compares policies."""
