"""LangChain: a chain of a prompt and a model, and an answer in the form of a class."""

import os

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(
    model=os.environ.get("MODEL", "my-model"),
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


class City(BaseModel):
    """A city."""

    name: str
    people: int


prompt = ChatPromptTemplate.from_template("Tell me about {city}.")
for piece in (prompt | model.bind(max_tokens=50)).stream({"city": "Paris"}):
    print(piece.text, end="", flush=True)
print()
print((prompt | model.with_structured_output(City, method="json_schema")).invoke({"city": "Paris"}))
