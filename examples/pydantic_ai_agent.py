"""pydantic-ai: an agent that answers in the form of a class, which the model's grammar enforces."""

import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


class City(BaseModel):
    name: str
    people: int


model = OpenAIChatModel(os.environ.get("MODEL", "my-model"), provider=provider)
print(Agent(model, output_type=NativeOutput(City)).run_sync("Tell me about Paris.").output)
