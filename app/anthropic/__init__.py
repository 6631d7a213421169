"""Anthropic's requests and answers; no HTTP. They are generated as chats are, by `app/openai/`."""
