"""instructor: a response model by a forced tool, by schema and by JSON, over chat, Responses and Messages."""

import instructor
from anthropic import Anthropic
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    people: int


OSLO, PARIS = City(name="Oslo", people=700_000), City(name="Paris", people=2_100_000)
forced, written = [{"role": "user", "content": text} for text in ("Call it for Oslo.", "How large is Paris?")]

for mode, message, wanted in (
    (Mode.TOOLS, forced, OSLO),
    (Mode.TOOLS_STRICT, forced, OSLO),
    (Mode.JSON_SCHEMA, written, PARIS),
    (Mode.JSON, written, PARIS),
    (Mode.RESPONSES_TOOLS, forced, OSLO),
):
    client = instructor.from_openai(OpenAI(max_retries=0), mode=mode)
    city = client.create(model="mock", messages=[message], response_model=City, max_retries=0)
    print(mode.name, city)
    assert city.model_dump() == wanted.model_dump()  # instructor returns a class of its own

partial, pieces = None, [{"role": "user", "content": "Call it in part for Oslo."}]
client = instructor.from_openai(OpenAI(max_retries=0))
for partial in client.create_partial(model="mock", messages=pieces, response_model=City):  # noqa: B007 (the last one is used)
    pass
print("partial", partial)
assert (partial.name, partial.people) == (OSLO.name, OSLO.people)

client = instructor.from_anthropic(Anthropic(max_retries=0), mode=Mode.ANTHROPIC_TOOLS)
city = client.create(model="mock", max_tokens=500, messages=[forced], response_model=City, max_retries=0)
print("ANTHROPIC_TOOLS", city)
assert city.model_dump() == OSLO.model_dump()
