"""OpenAI's Responses API, over kept answers."""
