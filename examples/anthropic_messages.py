"""Anthropic's client: a message in pieces."""

import os

from anthropic import Anthropic

client = Anthropic(
    base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000"),
    api_key=os.environ.get("ANTHROPIC_API_KEY", "none"),
)
question = [{"role": "user", "content": "Tell me about Paris."}]
model = os.environ.get("MODEL", "my-model")
with client.messages.stream(model=model, max_tokens=50, messages=question) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    print("\n", stream.get_final_message().usage)
