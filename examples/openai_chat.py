"""OpenAI's client: an answer in pieces, and one in the form of a class."""

import os

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = os.environ.get("MODEL", "my-model")


class City(BaseModel):
    name: str
    people: int


question = [{"role": "user", "content": "Tell me about Paris."}]
for chunk in client.chat.completions.create(model=model, messages=question, max_tokens=50, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

answer = client.chat.completions.parse(model=model, messages=question, response_format=City)
print(answer.choices[0].message.parsed)
