"""OpenAI's Responses API, over answers that are kept."""
