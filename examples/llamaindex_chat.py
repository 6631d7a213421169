"""LlamaIndex: a chat in pieces."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model=os.environ.get("MODEL", "my-model"),
    api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    is_chat_model=True,
    max_tokens=50,
)
for piece in model.stream_chat([ChatMessage(role="user", content="Tell me about Paris.")]):
    print(piece.delta, end="", flush=True)
print()
