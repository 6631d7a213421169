"""The anthropic package: streamed thinking and tools, a tool runner, a parsed schema."""

from anthropic import Anthropic, beta_tool
from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


@beta_tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return "21 degrees" if city == "Paris" else "unknown"


ANSWER = "It is 21 degrees in Paris."
client = Anthropic(max_retries=0)
asked = {"model": "mock", "max_tokens": 500}
question = {"role": "user", "content": "How is the weather in Paris?"}

with client.messages.stream(messages=[question], tools=[get_weather.to_dict()], **asked) as stream:
    message = stream.get_final_message()
print([block.type for block in message.content])
made = message.content[-1]
assert (made.name, made.input) == ("get_weather", {"city": "Paris"})
result = {"type": "tool_result", "tool_use_id": made.id, "content": "21 degrees"}
turns = [question, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
with client.messages.stream(messages=turns, tools=[get_weather.to_dict()], **asked) as stream:
    text = stream.get_final_text()
print(text)
assert text == ANSWER

runner = client.beta.messages.tool_runner(messages=[question], tools=[get_weather], **asked)
text = runner.until_done().content[0].text
print(text)
assert text == ANSWER

large = [{"role": "user", "content": "How large is Paris?"}]
parsed = client.messages.parse(messages=large, output_format=City, **asked)
print(parsed.parsed_output)
assert parsed.parsed_output == City(name="Paris", people=2_100_000)
more = [*large, {"role": "assistant", "content": parsed.content}, *turns]
text = client.messages.create(messages=more, tools=[get_weather.to_dict()], **asked).content[0].text
print(text)
assert text == ANSWER
