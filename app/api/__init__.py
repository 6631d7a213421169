"""The OpenAI-compatible HTTP server. Never imports an engine."""
