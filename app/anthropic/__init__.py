"""What Anthropic's requests mean and how their answers look; no HTTP. Generated as chats are, by `app/openai/`."""
